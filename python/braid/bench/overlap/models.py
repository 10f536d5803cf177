"""Models whose layers are measured. Imports nothing: arguments are looked at before torch is."""

MODELS = {"gpt-3": (12288, 49152), "llama-70b": (8192, 28672)}
"""Width, and width between the two layers of a block's MLP."""
