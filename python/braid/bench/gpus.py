"""Which GPUs this machine has, asked without making a CUDA context.

The launcher asks: a context of its own would take memory from the ranks.
"""

import importlib.util
import warnings
from dataclasses import dataclass
from pathlib import Path

from braid.bench.no_multicast import forbid_multicast

MOST = 8
"""GPUs of one node that a comm takes."""
_DEVICES = Path("/dev")
_DRIVER = Path("/proc/driver/nvidia/version")


@dataclass(frozen=True)
class Gpus:
    """How many GPUs braid and torch can both use, and why there are not more."""

    count: int
    why_none: str = ""


def find(devices: Path = _DEVICES, driver: Path = _DRIVER) -> Gpus:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves."""
    has_nodes = any(path.name[6:].isdigit() for path in devices.glob("nvidia*"))
    if not has_nodes and not driver.exists():
        return Gpus(0, "this machine has no NVIDIA GPU")
    if importlib.util.find_spec("torch") is None:
        return Gpus(0, "torch, which holds the tensors, is not installed here")
    forbid_multicast()
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        count = int(torch.cuda.device_count())
    return Gpus(count, "" if count else f"torch {torch.__version__} sees no GPU here")
