"""Whether the process that has a job's store still does, as far as a connection tells.

torch's TCPStore lies in one process: under env:// without torchrun, rank 0's. What a rank writes
into one that has gone is an error which the rank may pass over, but torch prints a warning with its
C++ stack first. Connecting tells the same without a word: nobody listens at the port any more.
"""

import contextlib
import errno
import socket
from typing import Any

from torch.distributed import PrefixStore, TCPStore

_ANSWER_S = 0.2  # a host that is there answers in milliseconds
# Of an address that this host has no way to, such as one by IPv6: it says nothing of the store.
_NO_WAY_HERE = {errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.ENETUNREACH}

Where = list[tuple[socket.AddressFamily, Any]]


def where_it_listens(store: Any) -> Where:
    """Of a TCPStore, at once: its name may have no address any more when it is asked for. Empty of
    other stores, which have no process of their own.
    """
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    if not isinstance(store, TCPStore):
        return []
    with contextlib.suppress(OSError):
        found = socket.getaddrinfo(store.host, store.port, type=socket.SOCK_STREAM)
        return [(family, address) for family, _, _, _, address in found]
    return []


def has_closed(where: Where) -> bool:
    """Whether it is known to: somewhere nobody listens, and nowhere else does anybody, or may."""
    is_refused = False
    for family, address in where:
        error = _error_of(family, address)
        if error not in (errno.ECONNREFUSED, *_NO_WAY_HERE):
            return False
        is_refused = is_refused or error == errno.ECONNREFUSED
    return is_refused


def _error_of(family: socket.AddressFamily, address: Any) -> int | None:
    """Of a connection to it."""
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.settimeout(_ANSWER_S)
            probe.connect(address)
    except TimeoutError:
        return errno.ETIMEDOUT
    except OSError as error:
        return error.errno
    return None
