"""braid as a backend of torch.distributed.

import braid.torch, torch
torch.distributed.init_process_group("braid")    # started by torchrun or braid run

CPU tensors go over host lanes, CUDA tensors over GPU lanes; docs/torch.md tells the rest.
`import braid` alone brings no torch in.
"""

try:
    import torch.distributed
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError("braid.torch needs PyTorch: pip install torch") from missing
if not torch.distributed.is_available():
    raise ImportError("braid.torch needs a PyTorch that was built with torch.distributed")

from braid.torch.group import BraidGroup, make_group

__all__ = ["BraidGroup"]

torch.distributed.Backend.register_backend(
    "braid", make_group, extended_api=True, devices=["cpu", "cuda"]
)
