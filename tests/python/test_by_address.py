"""The short way of a comm's collectives, on host memory that passes for a GPU's: the same results
and errors as the long way, which takes over for all that is not plain.

Skipped where torch is not installed.
"""

import importlib.util
import sys
import time

import numpy as np
import pytest

import braid
from braid.by_address import ByAddress

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="skipped: needs torch"
)

DTYPES = ("int8", "uint8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64")
CALLS = ("all_gather", "all_reduce", "reduce_scatter", "all_to_all", "broadcast")


@pytest.fixture
def gpu_ranks(ranks, monkeypatch):
    """As ranks(), with CPU tensors that pass for a GPU's. body(comm, core)."""

    def run(size, body):
        def main(comm):
            from gpu_tensors import pass_for_gpu

            return body(comm, pass_for_gpu(monkeypatch))

        return ranks(size, main)

    return run


def numbers(rank, *shape, dtype="float32"):
    """Other ones at every place and on every rank, which all types hold."""
    import torch

    count = int(np.prod(shape))
    made = (torch.arange(count) * 3 + 7 * rank) % 11 - (0 if dtype == "uint8" else 5)
    return made.to(getattr(torch, dtype)).reshape(shape)


def long_way(call):
    """What `call` gives by the long way."""
    with pytest.MonkeyPatch.context() as patch:
        for name in CALLS:
            patch.setattr(ByAddress, name, lambda *_: None)
        return call()


def both_ways(core, name, call):
    """What `call` gives the short way, which it must have gone, and the same as the long one."""
    import torch

    core.calls.clear()
    short = call()
    assert [each for each, _ in core.calls] == [name]
    kept = short.clone()
    short.zero_()
    long = long_way(call)
    assert len(core.calls) == 1
    assert kept.shape == long.shape
    assert kept.dtype == long.dtype
    assert torch.equal(kept, long)
    return long


def _compare(comm, core, dtype):
    import torch

    n, r = comm.size, comm.rank
    block, whole = numbers(r, 2, 3, dtype=dtype), numbers(r, 2 * n, 3, dtype=dtype)

    def both(name, *args, **how):
        return both_ways(core, name, lambda: getattr(comm, name)(*args, **how))

    def room(*shape):
        return torch.zeros(*shape, dtype=block.dtype)

    got = both("all_gather", block)
    assert torch.equal(got, torch.cat([numbers(i, 2, 3, dtype=dtype) for i in range(n)]))
    out = room(6 * n)
    assert both("all_gather", block, out) is out
    for op in ("sum", "min", "max", "prod", "avg"):
        both_ways(core, "all_reduce", lambda op=op: comm.all_reduce(block.clone(), op))
        assert both("reduce_scatter", whole, op).shape == (2, 3)
    for out in (room(2, 3), room(6)):
        assert both("all_reduce", block, out=out) is out
    out = room(3, 2)
    assert both("reduce_scatter", whole, out=out) is out
    got = both("all_to_all", whole)
    assert torch.equal(got[:2], numbers(0, 2 * n, 3, dtype=dtype)[2 * r : 2 * r + 2])
    out = room(6 * n)
    assert both("all_to_all", whole, out) is out
    got = both_ways(core, "broadcast", lambda: comm.broadcast(block.clone(), n - 1))
    assert torch.equal(got, numbers(n - 1, 2, 3, dtype=dtype))


def test_both_ways_give_the_same(gpu_ranks):
    def body(comm, core):
        for dtype in DTYPES:
            _compare(comm, core, dtype)

    gpu_ranks(2, body)
    gpu_ranks(3, body)


def test_in_place_and_scalars(gpu_ranks):
    def body(comm, core):
        import torch

        n, r = comm.size, comm.rank
        whole = torch.zeros(n, 2)
        whole[r] = r + 1
        comm.all_gather(whole[r], whole)
        assert whole.tolist() == [[i + 1.0] * 2 for i in range(n)]
        sums = torch.full((n, 2), 2.0)
        comm.reduce_scatter(sums, out=sums[r])
        assert sums[r].tolist() == [2.0 * n] * 2
        parameter = torch.nn.Parameter(torch.ones(3), requires_grad=False)
        assert comm.all_reduce(parameter) is parameter
        assert comm.all_gather(torch.tensor(r)).tolist() == list(range(n))
        assert comm.all_reduce(torch.tensor(1.5), out=torch.zeros(1)).tolist() == [1.5 * n]
        assert len(core.calls) == 5

    gpu_ranks(2, body)


def test_the_stream_is_the_one_that_is_asked_for(gpu_ranks):
    def body(comm, core):
        import torch
        from gpu_tensors import STREAM

        class Stream:
            cuda_stream = 1234

        x = torch.ones(comm.size)
        for stream, wanted in ((None, STREAM), (99, 99), (Stream(), 1234)):
            core.calls.clear()
            comm.all_reduce(x, stream=stream)
            comm.all_gather(x, stream=stream)
            comm.reduce_scatter(x, stream=stream)
            comm.all_to_all(x, stream=stream)
            comm.broadcast(x, stream=stream)
            assert core.calls == [(name, wanted) for name in
                                  ("all_reduce", "all_gather", "reduce_scatter", "all_to_all",
                                   "broadcast")]  # fmt: skip
            work = comm.all_reduce(x, async_op=True, stream=stream)
            assert (work._mark.gpu, work._mark.stream) == (0, wanted)
            assert work.wait() is x
        with pytest.raises(braid.InvalidArgument, match="argument stream"):
            comm.all_reduce(x, stream=-1)

    gpu_ranks(1, body)


def test_ranks_may_take_different_ways(gpu_ranks):
    def body(comm, core):
        import torch

        n, r = comm.size, comm.rank
        for dtype in DTYPES:
            x = numbers(r, n, 2, dtype=dtype)
            array = x if r == 0 else x.float().numpy() if dtype == "bfloat16" else x.numpy()
            if dtype == "bfloat16":
                array = x if r == 0 else x.clone().requires_grad_(False).as_subclass(_odd())
            sums = torch.as_tensor(comm.all_reduce(array))
            wanted = sum(numbers(i, n, 2, dtype=dtype).double() for i in range(n))
            assert torch.equal(sums.double(), wanted), dtype
            gathered = torch.as_tensor(comm.all_gather(array))
            assert gathered.shape == (n * n, 2)
            torch.as_tensor(comm.all_to_all(array))
            torch.as_tensor(comm.broadcast(array))
            torch.as_tensor(comm.reduce_scatter(array))
        return len(core.calls)

    assert gpu_ranks(2, body) == [5 * len(DTYPES), 0]


def _odd():
    import torch

    return type("Odd", (torch.Tensor,), {})


def test_what_is_not_plain_goes_the_long_way(gpu_ranks):
    def body(comm, core):
        import torch

        n = comm.size
        half = torch.ones(4, dtype=torch.complex64)
        for x in (
            torch.ones(4).as_subclass(_odd()),
            torch.ones(4, dtype=torch.bool),
            half,
            torch.ones(0),
            np.ones(4),
        ):
            assert len(comm.all_gather(x)) == n * len(x)
            assert len(comm.broadcast(x)) == len(x)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.Tensor, "is_cuda", False)
            assert comm.all_reduce(torch.ones(2)).tolist() == [n, n]
        x = torch.ones(4)
        assert comm.all_gather(x, counts=[4] * n).shape == (4 * n,)
        assert comm.reduce_scatter(torch.ones(4 * n), counts=[4] * n).shape == (4,)
        assert comm.all_to_all(torch.ones(n), None, [1] * n, [1] * n).shape == (n,)
        assert comm.all_reduce(x, out=np.zeros(4, np.float32)).tolist() == [n] * 4
        assert core.calls == []

    gpu_ranks(2, body)


def test_both_ways_say_the_same_of_what_is_wrong(gpu_ranks):
    """Of a call that is like one that went well but for what is wrong."""

    def body(comm, core):
        import torch

        n = comm.size
        x, room = torch.ones(2 * n), torch.zeros(8 * n)
        leaf = torch.ones(2 * n, requires_grad=True)
        wrong = {
            "contiguous": lambda: comm.all_reduce(torch.ones(2 * n, 2)[:, 0]),
            "negated": lambda: comm.all_reduce(torch._neg_view(torch.ones(2 * n))),
            "requires_grad": lambda: comm.all_reduce(leaf),
            "requires_grad of out": lambda: comm.all_reduce(x, out=leaf),
            "op": lambda: comm.all_reduce(x, "mean"),
            "no op": lambda: comm.all_reduce(x, ["sum"]),
            "op of a scatter": lambda: comm.reduce_scatter(x, None),
            "type of out": lambda: comm.all_reduce(x, out=torch.zeros(2 * n, dtype=torch.int32)),
            "length of out": lambda: comm.all_reduce(x, out=torch.zeros(2 * n + 1)),
            "overlap": lambda: comm.all_reduce(room[: 2 * n], out=room[1 : 2 * n + 1]),
            "gathered: type": lambda: comm.all_gather(x, torch.zeros(2 * n * n).half()),
            "gathered: length": lambda: comm.all_gather(x, torch.zeros(2 * n)),
            "gathered: gaps": lambda: comm.all_gather(x, torch.zeros(2 * n * n, 2)[:, 1]),
            "gathered: overlap": lambda: comm.all_gather(room[1 : n + 1], room[: n * n]),
            "scattered: rows": lambda: comm.reduce_scatter(torch.ones(2 * n + 1)),
            "scattered: elements": lambda: comm.reduce_scatter(
                torch.ones(2 * n + 1), out=torch.zeros(2)
            ),
            "scattered: length": lambda: comm.reduce_scatter(x, out=torch.zeros(3)),
            "scattered: overlap": lambda: comm.reduce_scatter(room[: 2 * n], out=room[1:3]),
            "swapped: rows": lambda: comm.all_to_all(torch.ones(2 * n + 1)),
            "swapped: length": lambda: comm.all_to_all(x, torch.zeros(2)),
            "swapped: overlap": lambda: comm.all_to_all(room[: 2 * n], room[1 : 2 * n + 1]),
            "counts of one side": lambda: comm.all_to_all(x, recv_counts=[2] * n),
            "root": lambda: comm.broadcast(x, n),
            "no root": lambda: comm.broadcast(x, "0"),
        }  # fmt: skip
        comm.all_reduce(x.clone())
        core.calls.clear()
        for what, call in wrong.items():
            said = []
            for way in (lambda call: call(), lambda call: long_way(call)):
                with pytest.raises(braid.Error) as error:
                    way(call)
                said.append((type(error.value), str(error.value)))
            assert said[0] == said[1], what
        assert core.calls == []

    gpu_ranks(2, body)


def test_another_gpus_memory_is_refused(gpu_ranks):
    def body(comm, core):
        import torch

        x, out = torch.ones(4), torch.zeros(4)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.Tensor, "get_device", lambda tensor: int(tensor is out))
            assert comm._by_address.all_reduce(x, "sum", out, None) is None
            assert comm._by_address.all_to_all(x, out, None) is None
        assert core.calls == []

    gpu_ranks(1, body)


@pytest.mark.parametrize("name", CALLS)
def test_a_closed_comm_and_a_failure_of_the_core_are_told(gpu_ranks, name):
    def body(comm, core):
        import torch

        call = getattr(comm, name)
        call(torch.ones(2))
        assert len(core.calls) == 1
        core.error = braid.PeerLost("rank 1 died")
        with pytest.raises(braid.PeerLost, match="rank 1 died"):
            call(torch.ones(2))
        core.error = None
        comm.close()
        with pytest.raises(braid.InvalidArgument, match="closed"):
            call(torch.ones(2))

    gpu_ranks(1, body)


def test_no_memory_is_exhausted(gpu_ranks):
    def body(comm, core):
        import torch

        def short(*_shape):
            raise torch.OutOfMemoryError("for the test")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.Tensor, "new_empty", short)
            for call in (comm.all_gather, comm.reduce_scatter, comm.all_to_all):
                with pytest.raises(braid.Exhausted, match=r"shape \(2, 3\): for the test"):
                    call(torch.ones(2, 3))
        assert core.calls == []

    gpu_ranks(1, body)


def test_behind_calls_that_are_under_way_it_goes_the_long_way(gpu_ranks, tmp_path):
    has_looked = tmp_path / "has looked"

    def body(comm, core):
        import torch

        if comm.rank == 0:
            message = comm.irecv(np.zeros(1), 1)
            assert comm._calls.are_under_way
            x, short = torch.ones(2), comm._by_address
            assert short.all_reduce(x, "sum", None, None) is None
            assert short.reduce_scatter(x, "sum", None, None) is None
            for move in (short.all_gather, short.all_to_all):
                assert move(x, None, None) is None
            assert short.broadcast(x, 0, None) is None
            has_looked.touch()
            message.wait()
        else:
            while not has_looked.exists():
                time.sleep(0.01)
            comm.send(np.zeros(1), 0)
        assert core.calls == []

    gpu_ranks(2, body)


def test_a_tensor_of_torch_func_goes_the_long_way(gpu_ranks):
    """It is of torch's own class and has no address."""

    def body(comm, core):
        import torch

        seen = []

        def each(row):
            seen.append(type(row))
            assert comm._by_address.all_reduce(row, "sum", None, None) is None
            return row

        torch.func.vmap(each)(torch.ones(3, 2))
        assert seen == [torch.Tensor]
        assert core.calls == []

    gpu_ranks(1, body)


def test_a_torch_that_says_too_little_goes_the_long_way(gpu_ranks):
    def body(comm, core):
        import torch

        from braid import by_address

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(by_address, "_torch", None)
            patch.delattr(torch._C, "_cuda_getCurrentRawStream")
            assert comm.all_reduce(torch.ones(2)).tolist() == [1.0, 1.0]
            assert by_address.current_stream(0) == torch.cuda.current_stream(0).cuda_stream
            patch.delitem(sys.modules, "torch")
            assert comm.all_reduce(np.ones(2)).tolist() == [1.0, 1.0]
        assert core.calls == []

    gpu_ranks(1, body)
