"""Python objects between ranks."""

import pickle

import numpy as np
import pytest

import braid


class Rude:
    """Cannot be pickled."""

    def __reduce__(self):
        raise pickle.PicklingError("no")


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_objects(ranks, size):
    def body(comm):
        mine = {"rank": comm.rank, "list": [comm.rank] * comm.rank, "array": np.arange(comm.rank)}
        everyone = comm.all_gather_object(mine)
        assert [one["rank"] for one in everyone] == list(range(size))
        assert [len(one["array"]) for one in everyone] == list(range(size))
        assert everyone[comm.rank] is mine
        for root in range(size):
            sent = ("from", root, "x" * 100_000) if comm.rank == root else None
            assert comm.broadcast_object(sent, root) == ("from", root, "x" * 100_000)
        assert comm.broadcast_object(None) is None
        if size > 1 and comm.rank < 2:
            if comm.rank == 0:
                comm.send_object({"a": 1}, 1)
                return comm.recv_object(1)
            comm.send_object(comm.recv_object(0) | {"b": 2}, 0)
        return None

    assert ranks(size, body)[0] == ({"a": 1, "b": 2} if size > 1 else None)


def test_what_cannot_be_pickled_is_told_to_all(ranks):
    def body(comm):
        is_rude = comm.rank == 1
        told = pickle.PicklingError if is_rude else braid.InvalidArgument
        with pytest.raises(told):
            comm.all_gather_object(Rude() if is_rude else 1)
        with pytest.raises(told):
            comm.broadcast_object(Rude() if is_rude else None, root=1)
        if comm.rank == 1:
            with pytest.raises(pickle.PicklingError):
                comm.send_object(Rude(), 0)
        if comm.rank == 0:
            with pytest.raises(braid.InvalidArgument, match="object of rank 1 cannot be pickled"):
                comm.recv_object(1)
        return comm.all_gather_object(comm.rank)

    assert ranks(3, body) == [[0, 1, 2]] * 3
