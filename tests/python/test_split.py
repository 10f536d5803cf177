"""Parts of a comm."""

import os
import threading
from functools import partial

import numpy as np
import pytest

import braid
from braid.split import Choice, bound_here, fields_of, own_address, part_of

ELSEWHERE = "203.0.113.77"  # kept for documentation, RFC 5737: no host has it


def test_parts_work_at_the_same_time(ranks):
    def body(comm):
        part = comm.split(comm.rank % 2, key=-comm.rank)
        for number in range(20):
            mine = np.full(20_000, 10**comm.rank + number)
            whole = comm.all_reduce(np.full(1000, comm.rank), async_op=True)  # beside the part's
            expected = sum(10**r + number for r in range(comm.rank % 2, comm.size, 2))
            assert (part.all_reduce(mine) == expected).all()
            assert (whole.wait() == 10).all()
        order = part.all_gather(np.array([comm.rank])).tolist()
        part.close()
        comm.barrier()
        return part.rank if not part._core.closed else None, part.size, order

    found = ranks(5, body)
    assert [size for _, size, _ in found] == [3, 2, 3, 2, 3]
    assert [order for _, _, order in found] == [[4, 2, 0], [3, 1], [4, 2, 0], [3, 1], [4, 2, 0]]


def test_no_color_and_a_part_of_one(ranks):
    def body(comm):
        part = comm.split([None, 7, 8][comm.rank])
        if part is None:
            return None
        with part:
            return part.size, part.all_reduce(np.ones(1)).tolist(), part.local_rank

    assert ranks(3, body) == [None, (1, [1.0], 1), (1, [1.0], 2)]


def test_parts_of_parts_and_options(ranks):
    def body():
        with (
            braid.init(progress=False, timeout=7.0, links=["shm"]) as comm,
            comm.split(comm.rank // 2) as pair,
            pair.split(0, key=1 - pair.rank) as turned,
        ):
            names = [link.name for link in turned.links]
            got = turned.all_gather_object(comm.rank)
            if turned.rank == 0:
                turned.send(np.full(2, 5), 1)
            else:
                assert turned.recv(np.empty(2, int), 0).tolist() == [5, 5]
            return names, got

    assert ranks.collect(ranks.start(4, body)) == [(["shm"], got) for got in ([1, 0],) * 2] + [
        (["shm"], got) for got in ([3, 2],) * 2
    ]


def test_a_part_ends_alone(ranks):
    """A disagreement, even the loss of one part, is nothing to the other."""

    def body(comm):
        part = comm.split(comm.rank // 2)
        if comm.rank < 2:
            with pytest.raises(braid.InvalidArgument):
                part.all_reduce(np.ones(2 + part.rank))
            # Both were told.
            comm.send(np.ones(1), 1) if comm.rank == 0 else comm.recv(np.ones(1), 0)
            part.abort("it is given up")
            with pytest.raises(braid.PeerLost):
                part.barrier()
        else:
            assert part.all_reduce(np.ones(2)).tolist() == [2, 2]
        part.close()
        return comm.all_reduce(np.ones(1)).tolist()

    assert ranks(4, body) == [[4]] * 4


def test_wrong_arguments(ranks):
    def body(comm):
        for color, key in (("red", 0), (0, "first"), (0.5, 0)):
            with pytest.raises(braid.InvalidArgument, match="split: arguments color and key"):
                comm.split(color, key)
        comm.barrier()
        return threading.active_count()

    ranks(2, body)


def test_one_bind_for_the_whole_job(ranks):
    """It is an address of rank 0's host; parts that begin on another one listen where they are."""

    def body(options):
        rank = int(os.environ["RANK"])
        bind = "127.0.0.1" if rank == 0 else ELSEWHERE  # as if ranks 1 and 2 were on another host
        if not options:
            os.environ["BRAID_BIND"] = bind
        with (
            braid.init(progress=False, timeout=10.0, **dict.fromkeys(options, bind)) as comm,
            comm.split(int(rank > 0)) as part,
            part.split(0, key=-rank) as turned,
        ):
            return part.all_gather_object(rank), turned.all_gather_object(rank)

    for options in ([], ["bind"], ["BIND"]):
        found = ranks.collect(ranks.start(3, partial(body, options)))
        assert found == [([0], [0]), ([1, 2], [2, 1]), ([1, 2], [2, 1])]


def test_where_the_store_of_a_part_listens(monkeypatch):
    assert bound_here({"timeout": 1}, "10.0.0.1") == {"timeout": 1}
    for bind in ("127.0.0.1", "0.0.0.0", "localhost", ELSEWHERE):
        here = bind != ELSEWHERE
        assert bound_here({"bind": bind}, "10.0.0.1") == {"bind": "10.0.0.1"}
        assert bound_here({"bind": bind}, "node0") == {"bind": bind if here else "node0"}
        monkeypatch.setenv("BRAID_BIND", bind)
        assert bound_here({"bind": None}, "node0") == {"bind": None if here else "node0"}
        assert bound_here({"timeout": 1}, "::1") == {"timeout": 1, "bind": "::1"}
    assert bound_here({"bind": "127.0.0.1"}, "node0") == {"bind": "127.0.0.1"}


_LAUNCHERS = {  # the names of rank, size and rank 0's address
    "torchrun": ("RANK", "WORLD_SIZE", "MASTER_ADDR"),
    "slurm": ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LAUNCH_NODE_IPADDR"),
    "slurm, named": ("SLURM_PROCID", "SLURM_NTASKS", "MASTER_ADDR"),
    "mpirun": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "MASTER_ADDR"),
    "pmix": ("PMIX_RANK", "WORLD_SIZE", "MASTER_ADDR"),
    "leader and workers": ("LWS_WORKER_INDEX", "LWS_GROUP_SIZE", "LWS_LEADER_ADDRESS"),
    "pods": ("PET_NODE_RANK", "PET_NNODES", "PET_MASTER_ADDR"),
}


@pytest.mark.parametrize("launcher", _LAUNCHERS)
def test_parts_meet_by_the_address_of_the_launcher_that_spoke(ranks, launcher):
    names = _LAUNCHERS[launcher]

    def body():
        rank, port = os.environ.pop("RANK"), os.environ["MASTER_PORT"]
        for name in ("WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR"):
            del os.environ[name]
        if launcher in ("leader and workers", "pods"):
            os.environ["MASTER_ADDR"] = ELSEWHERE  # nobody asks for it
        os.environ["PET_MASTER_PORT"] = port
        os.environ["BRAID_HOST_ID"] = f"host{rank}"
        os.environ |= dict(zip(names, (rank, "2", "localhost"), strict=True))
        with braid.init(progress=False) as comm, comm.split(0) as part:
            assert comm.size == 2
            assert not comm._core.is_one_host
            return comm._store_address, part._store_address, part.all_gather_object(comm.rank)

    assert ranks.collect(ranks.start(2, body)) == [("localhost", "localhost", [0, 1])] * 2


def test_where_parts_meet():
    assert own_address("localhost") == "localhost"  # this host, by the name that others know
    assert own_address("127.0.0.1") == "127.0.0.1"
    hosts = ["10.0.0.1", "10.0.0.2"]
    choices = [Choice(r, r // 2, -r, hosts[r % 2], 1000 + r, f"n{r}") for r in range(4)]
    part = part_of(choices, 2)
    assert [choice.rank for choice in part] == [3, 2]
    fields = fields_of(part, 2, 5)
    assert fields == {
        "rank": 1,
        "size": 2,
        "store_address": "10.0.0.2",
        "store_port": 1003,
        "job_id": "split 5 1 n3",
    }
    assert fields_of(part, 3, 5) == {**fields, "rank": 0}
