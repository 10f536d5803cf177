"""Groups whose ranks are told who they are, and comms that are given up."""

import secrets
import threading
import time

import numpy as np
import pytest

import braid
from braid.launch import free_port


def identities(size: int, **more):
    port, job = free_port(), secrets.token_hex(4)
    return [
        braid.Identity(rank, size, local_rank=rank, store_port=port, job_id=job, **more)
        for rank in range(size)
    ]


def joined(identity: braid.Identity) -> braid.Comm:
    return braid.join(identity, job_token="for this group", tune=False, timeout=10.0)


def test_one_process_in_two_groups(ranks):
    """A pair inside a job of three, and ranks that are numbered the other way round."""
    pair, reversed_ = identities(2), identities(3)

    def body(comm):
        total = comm.all_reduce(np.full(3, comm.rank + 1)).tolist()
        with joined(reversed_[2 - comm.rank]) as other:
            assert other.rank == 2 - comm.rank
            gathered = other.all_gather(np.array([comm.rank])).tolist()
        inner = None
        if comm.rank < 2:
            with joined(pair[comm.rank]) as small:
                inner = small.all_reduce(np.array([10 + comm.rank])).tolist()
        comm.barrier()
        return total, gathered, inner

    expected = [([6, 6, 6], [2, 1, 0], inner) for inner in ([21], [21], None)]
    assert ranks(3, body) == expected


def test_an_identity_wins_over_the_environment(ranks):
    def body(comm):
        with braid.join(braid.Identity(0, 1)) as alone:
            return comm.size, alone.size, alone.all_reduce(np.ones(1)).tolist()

    assert ranks(2, body) == [(2, 1, [1.0])] * 2


def test_ranks_of_another_job_are_refused(ranks):
    port = free_port()

    def body():
        import os

        rank = int(os.environ["RANK"])
        identity = braid.Identity(rank, 2, store_port=port, job_id=f"job {rank}")
        with pytest.raises(braid.Error) as caught:
            braid.join(identity, job_token="x", timeout="2s")
        return str(caught.value)

    assert any("job" in text or "rank" in text for text in ranks.collect(ranks.start(2, body)))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"rank": -1, "size": 2}, "rank: asked for 0 to"),
        ({"rank": 0, "size": 2, "store_port": 70_000}, "store_port: asked for 0 to 65535"),
        ({"rank": 0, "size": 2**40}, "size"),
    ],
)
def test_wrong_fields(fields, words):
    with pytest.raises(braid.InvalidArgument, match=words):
        braid.Identity(**fields)


@pytest.mark.parametrize(
    ("identity", "words"),
    [
        (braid.Identity(2, 2, store_port=1), "rank 2"),
        (braid.Identity(0, 2), "no store port"),
        (braid.Identity(0, 0), "size 0"),
    ],
)
def test_identities_that_no_group_has(identity, words):
    with pytest.raises(braid.InvalidArgument, match=words):
        braid.join(identity, timeout="1s")


def test_abort_ends_a_call_of_another_thread_and_of_other_ranks(ranks):
    def body(comm):
        comm.barrier()
        began = time.monotonic()
        if comm.rank == 0:
            threading.Timer(0.3, comm.abort, ["gave up at noon"]).start()
        if comm.rank < 2:  # rank 2 never comes
            with pytest.raises(braid.PeerLost, match="gave up at noon"):
                comm.all_reduce(np.ones(10))
        else:
            time.sleep(0.6)
        with pytest.raises(braid.PeerLost, match="gave up at noon"):
            comm.barrier()
        comm.abort("twice")
        comm.close()
        comm.abort("after close")
        return time.monotonic() - began

    assert max(ranks(3, body)) < 5


def test_abort_of_a_comm_of_one(ranks):
    def body(comm):
        comm.abort("nobody to tell")
        return comm.size

    assert ranks(1, body) == [1]
