"""braid: collectives over every link of the machine at once.

import braid, numpy as np
with braid.init() as comm:                 # run with: braid run -n 4 script.py
    x = np.full(1000, comm.rank, np.float32)
    comm.all_reduce(x)                     # in place: 0 + 1 + 2 + 3
"""

from braid._braid import __version__
from braid.comm import Comm, Explanation, Link, init
from braid.errors import (
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

__all__ = [
    "Comm",
    "DriverError",
    "Error",
    "Exhausted",
    "Explanation",
    "InternalError",
    "InvalidArgument",
    "Link",
    "PeerLost",
    "Timeout",
    "Unavailable",
    "Unsupported",
    "__version__",
    "init",
]
