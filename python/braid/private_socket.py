"""Sockets that children which this process forks do not get.

Close-on-exec does not cover a fork alone, which is how data loaders start their workers. Such a
child would keep a connection open after this process was killed, so that the other side waits for
its deadline, and a port, so that nobody who takes this process's place can have it.
"""

import os
import socket
import weakref

_ours: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def private(sock: socket.socket) -> socket.socket:
    """The same socket; a child that is forked from now on finds it closed."""
    _ours.add(sock)
    return sock


def _close_in_child() -> None:
    for sock in list(_ours):
        sock.close()


os.register_at_fork(after_in_child=_close_in_child)
