"""DeepEP's package, with braid underneath: what programs import from deep_ep."""

from braid.moe import Buffer, Config, ElasticBuffer, EPHandle, EventHandle, EventOverlap
from braid.torch.moe import topk_idx_t

__all__ = [
    "Buffer",
    "Config",
    "EPHandle",
    "ElasticBuffer",
    "EventHandle",
    "EventOverlap",
    "topk_idx_t",
]
__version__ = "1.2.1+braid"
