"""TCP connections that are reset under a rank, as by a network that loses its patience."""

import contextlib
import os
import socket
from pathlib import Path


def _sockets():
    """A second handle of every socket of this process, open until the next one is asked for."""
    for entry in list(Path("/proc/self/fd").iterdir()):
        with contextlib.suppress(OSError):  # it may be closed meanwhile
            copy = os.dup(int(entry.name))
            try:
                sock = socket.socket(fileno=copy)
            except OSError:  # it is none
                os.close(copy)
                continue
            with sock:
                yield sock


def cut_connections():
    """Every TCP connection of this process but that to the store; how many."""
    store = int(os.environ["MASTER_PORT"])
    count = 0
    for sock in _sockets():
        with contextlib.suppress(OSError):  # it may be connected to nobody
            ends = sock.getsockname(), sock.getpeername()
            is_tcp = sock.family == socket.AF_INET and sock.type == socket.SOCK_STREAM
            if is_tcp and not any(store <= end[1] < store + 8 for end in ends):
                sock.shutdown(socket.SHUT_RDWR)
                count += 1
    return count
