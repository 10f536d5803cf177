"""deep_ep.buffer, where DeepEP's class itself lies."""

from braid.moe import Buffer

__all__ = ["Buffer"]
