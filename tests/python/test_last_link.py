"""What ends a job that has one link between its hosts, and what does not: a reset of every
connection at once, a rank that has left, memory that has run out.
"""

import contextlib
import os
import resource
import time
from pathlib import Path

import numpy as np
import pytest
from connections import cut_connections

import braid

RDMA = {"BRAID_LINKS": "rdma", "BRAID_TIMEOUT": "10s"}


TWO_LINKS = "rdma:tcp:127.0.0.1,rdma:tcp:127.0.0.2"


@pytest.mark.parametrize(
    ("links", "per_node", "calls", "count"),
    [("rdma", 1, 200, 50_000), (TWO_LINKS, 1, 200, 50_000), ("rdma,shm,staged", 2, 24, 2_000_000)],
)
def test_a_reset_of_all_links_at_once_is_mended(ranks, links, per_node, calls, count):
    """Of two nodes. Memory joins the ranks of one node, and leads to nobody on the other; there the
    ways break while there is more to put."""

    def body():
        os.environ["BRAID_HOST_ID"] = f"node{int(os.environ['RANK']) // per_node}"
        with braid.init(progress=False) as comm:
            return made(comm)

    def made(comm):
        cuts = 0
        pattern = np.arange(count, dtype=np.float32) % 31
        for call in range(calls):
            if comm.rank == 1 and call % (calls // 3) == calls // 6:
                cuts += cut_connections()
            got = pattern * (comm.rank + call)
            comm.all_reduce(got)
            factor = comm.size * call + sum(range(comm.size))
            np.testing.assert_array_equal(got, pattern * factor)
        return cuts

    started = ranks.start(2 * per_node, body, {**RDMA, "BRAID_LINKS": links})
    assert ranks.collect(started)[1] >= 3


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
