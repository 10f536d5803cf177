"""Sockets that a forked child does not get."""

import os
import signal
import socket
import time
from contextlib import contextmanager

from braid.kv.door import Door
from braid.private_socket import private


@contextmanager
def a_child():
    """Forked now, and there until the body ends."""
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    try:
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_connection_ends_with_its_process():
    ours, theirs = socket.socketpair()
    with ours, private(theirs), a_child():
        ours.settimeout(20)
        theirs.send(b"of this process")
        assert ours.recv(99) == b"of this process"
        theirs.close()
        assert ours.recv(99) == b""


def test_a_child_does_not_end_it():
    ours, theirs = socket.socketpair()
    with ours, private(theirs):
        with a_child():
            pass
        theirs.send(b"still")
        ours.settimeout(20)
        assert ours.recv(99) == b"still"


def test_who_takes_a_prefillers_place_has_its_port():
    with Door("127.0.0.1", 0, "the first", []) as door, a_child():
        door.close()
        with Door("127.0.0.1", door.port, "the second", []) as second:
            assert second.port == door.port
