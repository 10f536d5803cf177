"""braid: collectives over every link of the machine at once.

import braid, numpy as np
with braid.init() as comm:                 # run with: braid run -n 4 script.py
    x = np.full(1000, comm.rank, np.float32)
    comm.all_reduce(x)                     # in place: 0 + 1 + 2 + 3
"""

import importlib
from typing import TYPE_CHECKING

from braid.errors import (
    Cancelled,
    DriverError,
    Error,
    Exhausted,
    InternalError,
    InvalidArgument,
    PeerLost,
    Timeout,
    Unavailable,
    Unsupported,
)

if TYPE_CHECKING:
    from braid._braid import __version__
    from braid.arguments import Op, Operation
    from braid.comm import Comm, Explanation, Link, init, join
    from braid.engine import Engine
    from braid.joining import Identity
    from braid.under_nccl import stats
    from braid.work import Work

__all__ = [
    "Cancelled",
    "Comm",
    "DriverError",
    "Engine",
    "Error",
    "Exhausted",
    "Explanation",
    "Identity",
    "InternalError",
    "InvalidArgument",
    "Link",
    "Op",
    "Operation",
    "PeerLost",
    "Timeout",
    "Unavailable",
    "Unsupported",
    "Work",
    "__version__",
    "init",
    "join",
    "stats",
]

# Tools that only look and compute (braid plan, braid topo) need no compiled module and no NumPy:
# what needs them is loaded when it is first asked for.
_LOADED_LATE = {
    "Comm": "braid.comm",
    "Engine": "braid.engine",
    "Explanation": "braid.comm",
    "Identity": "braid.joining",
    "Link": "braid.comm",
    "Op": "braid.arguments",
    "Operation": "braid.arguments",
    "Work": "braid.work",
    "__version__": "braid._braid",
    "init": "braid.comm",
    "join": "braid.comm",
    "stats": "braid.under_nccl",
}

# `import braid` is enough for `braid.moe.Buffer`, as `import torch` is for torch.nn.
_PARTS = ("kv", "moe", "overlap", "torch", "weights")


def __getattr__(name: str) -> object:
    if name in _PARTS:
        return importlib.import_module(f"braid.{name}")
    if name not in _LOADED_LATE:
        raise AttributeError(f"module 'braid' has no attribute '{name}'")
    value: object = getattr(importlib.import_module(_LOADED_LATE[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """What users import, whether it is loaded or not, and nothing of how that is done."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
