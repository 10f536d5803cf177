"""What each way of dividing a model over GPUs moves, and how long that takes.

One file per way. All give a Report: volumes from the model's shapes, times from predict(), and
what remains visible beside the computation.
"""
