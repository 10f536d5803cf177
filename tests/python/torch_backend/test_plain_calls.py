"""The short way of a call on a GPU, on host memory that passes for a GPU's: the same results and
errors as the long way, which takes over for all that is not plain.
"""

import pytest
import torch
import torch.distributed as dist
from torch_backend_cuda import GPU, FakeCore, FakeCuda
from torch_backend_data import all_ranks, mine, numbers, same

import braid
import braid.torch.comms
from braid.torch.reduction import REDUCIBLE

OPS = [dist.ReduceOp.SUM, dist.ReduceOp.MIN, dist.ReduceOp.MAX, dist.ReduceOp.AVG]


@pytest.fixture
def core(monkeypatch):
    fake = FakeCore()
    fake.install(monkeypatch)
    return fake


@pytest.fixture
def gpu_ranks(core, torch_ranks, monkeypatch):
    """As torch_ranks, with CPU tensors that count as tensors of a GPU, also by their addresses."""
    monkeypatch.setattr(torch, "cuda", FakeCuda())
    monkeypatch.setattr(braid.torch.comms, "device_of", lambda _name, _tensors: GPU)

    def run(size, body):
        def main():
            dist.barrier()
            assert plain() is None  # nothing was called on a GPU
            dist.all_reduce(mine(1))
            assert plain() is not None
            assert core.calls == []
            return body()

        return torch_ranks(size, main)

    return run


def plain():
    return dist.group.WORLD._comms.plain


def both_ways(core, name, call):
    """What `call` leaves when it went the long way; the short one must leave the same."""
    comms, core.calls[:] = dist.group.WORLD._comms, []
    short = call()
    assert [each[0] for each in core.calls] == [name]
    way, comms.plain = comms.plain, None
    long = call()
    comms.plain = way
    assert len(core.calls) == 1
    for a, b in zip(short, long, strict=True):
        same(a.view(torch.uint8), b.view(torch.uint8))
    return long


@pytest.mark.parametrize("is_async", [False, True])
def test_both_ways_leave_the_same(gpu_ranks, core, is_async):
    def body():
        rank, n = dist.get_rank(), dist.get_world_size()
        gather, swap = dist.all_gather_into_tensor, dist.all_to_all_single

        def done(work, *tensors):
            if is_async:
                assert work.result()[0] is tensors[0]
                work.wait()
            return tensors

        def reduced(dtype, op):
            tensor = mine(37, dtype).view(37, 1)
            return done(dist.all_reduce(tensor, op, async_op=is_async), tensor)

        def scattered(dtype, op):
            out, tensor = torch.empty(5, dtype=dtype), mine(5 * n, dtype).view(n, 5)
            return done(dist.reduce_scatter_tensor(out, tensor, op, async_op=is_async), out)

        def moved(dtype, call, outs, ins):
            out, tensor = torch.zeros(outs, 3, dtype=dtype), mine(3 * ins, dtype).view(ins, 3)
            return done(call(out, tensor, async_op=is_async), out)

        def sent(dtype, root):
            tensor = mine(11, dtype)
            return done(dist.broadcast(tensor, root, async_op=is_async), tensor)

        for dtype in sorted(REDUCIBLE, key=str):
            for op in OPS:
                both_ways(core, "all_reduce", lambda d=dtype, o=op: reduced(d, o))
                both_ways(core, "reduce_scatter", lambda d=dtype, o=op: scattered(d, o))
            both_ways(core, "all_gather", lambda d=dtype: moved(d, gather, 2 * n, 2))
            both_ways(core, "all_to_all", lambda d=dtype: moved(d, swap, n, n))
            (got,) = both_ways(core, "broadcast", lambda d=dtype: sent(d, n - 1))
            same(got, numbers(11, dtype, n - 1))
        return rank

    assert gpu_ranks(3, body) == [0, 1, 2]


def test_ranks_may_take_different_ways(gpu_ranks, core):
    def body():
        rank, n = dist.get_rank(), dist.get_world_size()

        def laid_out(values):
            """The same values, in this rank's way: only rank 0's are contiguous."""
            return values if rank == 0 else values.t().contiguous().t()

        total = laid_out(mine(6).view(2, 3))
        dist.all_reduce(total)
        same(total.contiguous(), sum(all_ranks(6)).view(2, 3))
        block = torch.empty(2)
        dist.reduce_scatter_tensor(block, laid_out(mine(2 * n).view(n, 2)), dist.ReduceOp.MAX)
        same(block, torch.stack(all_ranks(2 * n)).amax(0).view(n, 2)[rank])
        root = laid_out(mine(6).view(2, 3))
        dist.broadcast(root, 1)
        same(root.contiguous(), numbers(6, torch.float32, 1).view(2, 3))
        whole = torch.empty(2 * n, 3)
        dist.all_gather_into_tensor(whole, laid_out(mine(6).view(2, 3)))
        same(whole, torch.cat([t.view(2, 3) for t in all_ranks(6)]))
        got = torch.empty(n, 3)
        dist.all_to_all_single(got, laid_out(mine(3 * n).view(n, 3)))
        same(got, torch.stack([t.view(n, 3)[rank] for t in all_ranks(3 * n)]))
        return len(core.calls)

    assert gpu_ranks(2, body) == [5, 0]


def test_what_is_not_plain_goes_the_long_way(gpu_ranks, core):
    def body():
        n = dist.get_world_size()

        class Odd(torch.Tensor):
            pass

        strided = torch.empty(6, 2)[:, 0]
        strided.copy_(mine(6))
        dist.all_reduce(strided)
        same(strided.contiguous(), sum(all_ranks(6)))
        negated = torch._neg_view(mine(6))
        dist.all_reduce(negated)
        same(negated.clone(), -sum(all_ranks(6)))
        odd = mine(6).as_subclass(Odd)
        group = dist.group.WORLD
        group.allreduce([odd]).wait()
        same(odd.as_subclass(torch.Tensor), sum(all_ranks(6)))
        bits = mine(6, torch.int32)
        dist.all_reduce(bits, dist.ReduceOp.BXOR)
        a, b = all_ranks(6, torch.int32)
        same(bits, a ^ b)
        flags = mine(6, torch.bool)
        dist.all_reduce(flags)
        same(flags, torch.stack(all_ranks(6, torch.bool)).any(0))
        pairs = mine(6, torch.complex64)
        group.broadcast([pairs], _broadcast_from(1)).wait()  # dist.broadcast makes floats of them
        same(pairs, numbers(6, torch.complex64, 1))
        scaled = mine(6)
        dist.all_reduce(scaled, dist._make_nccl_premul_sum(0.5))
        same(scaled, sum(all_ranks(6)) / 2)
        nothing = torch.empty(0)
        dist.all_reduce(nothing)
        dist.broadcast(nothing, 0)
        dist.all_gather_into_tensor(torch.empty(0), nothing)
        dist.all_to_all_single(torch.empty(0), nothing)
        dist.reduce_scatter_tensor(nothing, torch.empty(0))
        assert core.calls == []
        plain_one = mine(6)
        group.allreduce([plain_one]).wait()  # without options
        group.allreduce(plain_one, dist.ReduceOp.MAX).wait()
        assert core.calls == []
        two = [mine(3), mine(4)]
        group.broadcast(two, _broadcast_from(1)).wait()
        for got, count in zip(two, (3, 4), strict=True):
            same(got, numbers(count, torch.float32, 1))
        rows = torch.empty(n, 2)
        dist.all_to_all_single(rows, mine(2 * n).view(n, 2), [1] * n, [1] * n)
        assert core.calls == []

    gpu_ranks(2, body)


def _broadcast_from(root):
    options = dist.distributed_c10d.BroadcastOptions()
    options.rootRank = root
    return options


def test_what_is_wrong_is_said_as_before(gpu_ranks, core):
    def body():
        group = dist.group.WORLD
        reduce_scatter, all_to_all = dist.reduce_scatter_tensor, dist.all_to_all_single
        wrong = [
            ("argument output: asked for 8 elements", dist.all_gather_into_tensor, 7, 4),
            ("argument input: asked for 6 elements", reduce_scatter, 3, 5),
            ("argument output: asked for 4 elements", all_to_all, 5, 4),
        ]
        for text, call, outs, ins in wrong:
            with pytest.raises(braid.InvalidArgument, match=text):
                call(torch.empty(outs), torch.empty(ins))
        with pytest.raises(braid.InvalidArgument, match="that 2 ranks divide"):
            all_to_all(torch.empty(3, dtype=torch.uint8), torch.empty(3, dtype=torch.uint8))
        for outs, ins in (((3, 2), 6), (6, (3, 2))):
            with pytest.raises(braid.InvalidArgument, match="that 2 ranks divide, found 3"):
                all_to_all(torch.empty(outs), torch.empty(ins))
        for call in (group._allgather_base, group._reduce_scatter_base):
            with pytest.raises(braid.InvalidArgument, match="asked for tensors of one dtype"):
                call(torch.empty(4), torch.empty(4, dtype=torch.int32))
        for root in (-1, 2):
            with pytest.raises(braid.InvalidArgument, match="argument root: asked for a rank"):
                group.broadcast([torch.empty(3)], _broadcast_from(root)).wait()
        assert core.calls == []

    gpu_ranks(2, body)


def test_an_error_of_a_short_call_shows_when_it_is_waited_for(gpu_ranks, core):
    def body():
        core.error = braid.PeerLost("rank 3 died")
        tensor = mine(4)
        with pytest.raises(braid.PeerLost, match="rank 3"):
            dist.all_reduce(tensor)
        work = dist.all_reduce(tensor, async_op=True)
        assert work.is_completed()
        assert not work.is_success()
        with pytest.raises(braid.PeerLost, match="rank 3"):
            work.wait()
        core.error = None
        dist.all_reduce(tensor)
        same(tensor, sum(all_ranks(4)))

    gpu_ranks(2, body)


def test_streams_counts_and_batches(gpu_ranks, core):
    def body():
        group, cuda = dist.group.WORLD, torch.cuda
        before = group._get_sequence_number_for_group()
        own = cuda.current.cuda_stream
        dist.all_reduce(mine(3))
        with cuda.stream(cuda.Stream(GPU)) as other:
            dist.all_reduce(mine(3))
        work = dist.all_reduce(mine(3), async_op=True)
        side = group._comms._gpu._streams[GPU]
        streams = [stream for _, stream in core.calls]
        assert streams == [own, other.cuda_stream, side.cuda_stream]
        work.wait()
        assert group._get_sequence_number_for_group() == before + 3
        outs = [torch.empty(4), torch.empty(6)]
        with dist._coalescing_manager(async_ops=True) as batch:
            for out in outs:
                dist.all_gather_into_tensor(out, mine(out.numel() // 2))
        batch.wait()
        same(outs[1], torch.cat(all_ranks(3)))
        cuda.is_capturing = True
        captured = mine(3)
        dist.all_reduce(captured)
        cuda.is_capturing = False
        same(captured, sum(all_ranks(3)))

    gpu_ranks(2, body)


def test_the_end_of_the_group(gpu_ranks, core):
    def body():
        group = dist.new_group()
        tensor = mine(2)
        for _ in range(2):
            dist.all_reduce(tensor, group=group)
        assert len(core.calls) == 1
        work = group._comms.plain
        dist.destroy_process_group(group)
        assert group._comms.plain is None
        with pytest.raises(braid.InvalidArgument, match="was destroyed"):
            group.allreduce([tensor]).wait()
        options = dist.distributed_c10d.AllreduceOptions()
        for is_async in (False, True):  # a call that was on its way when another thread ended it
            options.asyncOp = is_async
            with pytest.raises(braid.InvalidArgument, match="was destroyed"):
                work.all_reduce([tensor], options).wait()
        assert len(core.calls) == 1

    gpu_ranks(2, body)


def test_a_torch_without_the_stream_s_handle_goes_the_long_way(gpu_ranks, core, monkeypatch):
    def body():
        monkeypatch.setattr(braid.torch.streams, "raw_stream", None)
        group, tensor = dist.new_group(), mine(5)
        for _ in range(2):
            dist.all_reduce(tensor, group=group)
        same(tensor, 2 * sum(all_ranks(5)))
        assert core.calls == []

    gpu_ranks(2, body)


def test_cpu_tensors_are_the_host_s(torch_ranks, core, monkeypatch):
    """Of a group that has made calls on a GPU."""
    monkeypatch.setattr(torch, "cuda", FakeCuda())

    def body():
        with monkeypatch.context() as patch:
            patch.setattr(braid.torch.comms, "device_of", lambda _name, _tensors: GPU)
            dist.all_reduce(mine(4))
        monkeypatch.setattr(torch.Tensor, "get_device", lambda _tensor: -1)
        tensor = mine(4)
        dist.all_reduce(tensor)
        same(tensor, sum(all_ranks(4)))
        assert core.calls == []
        return sorted(dist.group.WORLD._comms._made)

    assert torch_ranks(2, body) == [["cpu", "cuda"]] * 2
