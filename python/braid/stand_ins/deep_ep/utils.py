"""deep_ep.utils, from where Megatron takes events."""

from braid.moe import EventHandle, EventOverlap

__all__ = ["EventHandle", "EventOverlap"]
