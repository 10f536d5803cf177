"""Dispatch of tokens to experts and combine of what they made of them, between ranks.

from braid.moe import Buffer
buffer = Buffer(comm, num_nvl_bytes=32 << 20)     # a braid.Comm, or a group of torch.distributed

Names, arguments and shapes are those of DeepEP's Buffer, and of its ElasticBuffer, for NumPy arrays
and torch tensors; docs/moe.md tells one token's life. What touches torch is in braid.torch.moe,
which is loaded when a tensor or a group of torch's comes.
"""

from braid.moe.buffer import Buffer
from braid.moe.config import Config
from braid.moe.elastic import ElasticBuffer
from braid.moe.elastic_handle import EPHandle
from braid.moe.events import EventHandle, EventOverlap
from braid.moe.library import topk_idx_t

__all__ = [
    "Buffer",
    "Config",
    "EPHandle",
    "ElasticBuffer",
    "EventHandle",
    "EventOverlap",
    "topk_idx_t",
]
