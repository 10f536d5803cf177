"""Which GPUs this machine has, asked without making a CUDA context.

The launcher asks: a context of its own would take memory from the ranks.
"""

import importlib.util
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from braid import launched
from braid.bench.no_multicast import forbid_multicast

MOST = 8
"""GPUs of one node that a comm takes."""
_DEVICES = Path("/dev")
_DRIVER = Path("/proc/driver/nvidia/version")
_STARTER = "_BRAID_BENCH_STARTER"
"""The number of the `braid bench` that starts ranks itself: its children alone go by it."""


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


def needed(least: int) -> int:
    """How many GPUs this process must see where `least` are measured: a rank of a launch needs its
    own, and its launcher may show it no other. Ranks that `braid bench` has started see what it
    sees, and come to what it came to.
    """
    is_started_here = os.environ.get(_STARTER) == str(os.getppid())
    return 1 if launched.is_rank() and not is_started_here else least


@contextmanager
def starting_ranks() -> Iterator[None]:
    """While this process starts ranks and waits for them: their needed() is its own."""
    os.environ[_STARTER] = str(os.getpid())
    try:
        yield
    finally:
        del os.environ[_STARTER]
