"""What ends a job that has one link between its hosts, and what does not: a reset of every
connection at once, a rank that has left, memory that has run out.
"""

import contextlib
import os
import resource
import socket
import time
from pathlib import Path

import numpy as np
import pytest

import braid

RDMA = {"BRAID_LINKS": "rdma", "BRAID_TIMEOUT": "10s"}


def cut_connections():
    """Every TCP connection of this process but that to the store; how many."""
    store = int(os.environ["MASTER_PORT"])
    count = 0
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            sock = socket.socket(fileno=os.dup(int(entry.name)))
            with sock:
                ends = sock.getsockname(), sock.getpeername()
                is_tcp = sock.family == socket.AF_INET and sock.type == socket.SOCK_STREAM
                if is_tcp and not any(store <= end[1] < store + 8 for end in ends):
                    sock.shutdown(socket.SHUT_RDWR)
                    count += 1
    return count


@pytest.mark.parametrize("links", ["rdma", "rdma:tcp:127.0.0.1,rdma:tcp:127.0.0.2"])
def test_a_reset_of_all_links_at_once_is_mended(ranks, links):
    def body(comm):
        cuts = 0
        for call in range(200):
            if comm.rank == 1 and call % 60 == 30:
                cuts += cut_connections()
            got = np.arange(50_000, dtype=np.float32) % 31 * (comm.rank + call)
            comm.all_reduce(got)
            np.testing.assert_array_equal(
                got, np.arange(50_000, dtype=np.float32) % 31 * (2 * call + sum(range(comm.size)))
            )
        return cuts

    assert ranks(2, body, {**RDMA, "BRAID_LINKS": links})[1] >= 3


def test_who_has_left_is_lost_and_not_its_link(ranks):
    def body(comm):
        for _ in range(20):
            comm.all_reduce(np.ones(1000, np.float32))
        if comm.rank == 1:
            return None
        try:
            while True:
                comm.all_reduce(np.ones(1000, np.float32))
        except braid.PeerLost as error:
            return str(error)

    for _ in range(2):
        assert "rank 1" in ranks(2, body, RDMA)[0]


def limit_memory():
    """To what this process has."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize(), hard))
    return hard


def take_what_is_left():
    """Of the memory that malloc() has and nobody uses, what is larger than a few pages."""
    taken = []
    with contextlib.suppress(MemoryError):
        while True:
            taken.append(bytearray(100_000))
    return taken


@pytest.mark.parametrize("links", ["shm", "rdma"])
def test_memory_that_runs_out_in_a_call_is_told_to_all(ranks, links):
    """A bit for each of a million cells is more than is left."""

    def body(comm):
        data = np.ones(16 << 20, np.float32)
        comm.all_reduce(np.ones(10, np.float32))
        if comm.rank == 1:
            time.sleep(0.5)  # what ends the comm ends the others' first call, if they are in it
        hard = limit_memory() if comm.rank == 1 else None
        taken = take_what_is_left() if comm.rank == 1 else []
        began = time.monotonic()
        with pytest.raises(braid.Error, match="rank 1 has no memory left") as caught:
            comm.all_reduce(data)
        took_s = time.monotonic() - began
        if hard is not None:
            resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
            taken.clear()
            assert isinstance(caught.value, braid.Exhausted)
        began = time.monotonic()
        with pytest.raises(braid.Error, match="rank 1 has no memory left"):
            comm.all_reduce(data)
        return max(took_s, time.monotonic() - began)

    options = {"BRAID_LINKS": links, "BRAID_CELL": "64", "BRAID_TIMEOUT": "15s"}
    assert max(ranks(3, body, options)) < 7
