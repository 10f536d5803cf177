"""Doors of others: braid.weights.doors.vllm (vLLM's weight transfer engine) and
braid.weights.doors.verl (verl's checkpoint engine). Both know whole tensors alone.
"""
