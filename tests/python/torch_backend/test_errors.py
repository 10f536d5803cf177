"""Errors are braid's and torch's at once, and say what programs look for."""

import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch_backend_data import mine

import braid
from braid.torch import errors


@pytest.mark.parametrize(
    "name",
    [
        *("InvalidArgument", "Unsupported", "Unavailable", "Exhausted"),
        *("DriverError", "Timeout", "PeerLost", "Cancelled", "InternalError"),
    ],
)
def test_every_class_of_braids_is_one_of_torchs(name):
    error = errors.as_torch(getattr(braid, name)("rank 3 timed out"))
    assert isinstance(error, getattr(braid, name))
    assert isinstance(error, dist.DistBackendError)
    assert (type(error).__name__, str(error)) == (name, "rank 3 timed out")
    assert errors.as_torch(error) is error


def test_other_errors_and_texts():
    other = ValueError("not braid's")
    assert errors.as_torch(other) is other
    assert isinstance(errors.as_torch(braid.Error("new")), dist.DistBackendError)
    late = errors.as_torch(braid.Timeout("rank 1 did not come"))
    assert str(late) == "timed out: rank 1 did not come"


def test_what_calls_raise(torch_ranks):
    def body():
        group = dist.group.WORLD
        for wrong in (
            lambda: dist.all_reduce(mine(4 + dist.get_rank())),
            lambda: dist.all_reduce(mine(4 + dist.get_rank()), async_op=True).wait(),
            lambda: group.send([mine(1)], 7),
            lambda: dist.all_reduce(torch.ones(2).to_sparse()),
            lambda: group.split_group([0]),
        ):
            with pytest.raises(dist.DistBackendError) as caught:
                wrong()
            assert isinstance(caught.value, braid.Error)
        dist.barrier()
        if dist.get_rank() == 0:
            with pytest.raises(RuntimeError, match="timed out") as caught:
                dist.barrier()
            assert isinstance(caught.value, braid.Timeout)
            group.abort()
        else:
            time.sleep(1.5)

    def main():
        dist.init_process_group("braid", timeout=timedelta(seconds=1))
        body()

    torch_ranks._ranks.collect(torch_ranks._ranks.start(2, main))
