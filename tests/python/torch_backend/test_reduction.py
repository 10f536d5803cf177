"""What torch's operators mean for every element type, and what is refused."""

import pytest
import torch
import torch.distributed as dist
from torch_backend_data import all_ranks, mine, same

import braid
from braid.torch.reduction import reduction_of

BITWISE = {
    "BAND": torch.bitwise_and,
    "BOR": torch.bitwise_or,
    "BXOR": torch.bitwise_xor,
}


def test_bitwise_operators(torch_ranks):
    def body():
        other = dist.new_group(backend="gloo")
        rank, n = dist.get_rank(), dist.get_world_size()
        for name, combine in BITWISE.items():
            op = getattr(dist.ReduceOp, name)
            for count in (1, 2, 3, 1000, 1001):
                ours, theirs = mine(count, torch.int32), mine(count, torch.int32)
                dist.all_reduce(ours, op)
                dist.all_reduce(theirs, op, group=other)
                same(ours, theirs)
            every = all_ranks(4 * n, torch.uint8)
            want = combine(combine(every[0], every[1]), every[2])[4 * rank :][:4]
            got = torch.empty(4, dtype=torch.uint8)
            dist.reduce_scatter_tensor(got, mine(4 * n, torch.uint8), op)
            same(got, want)

    torch_ranks(3, body)


@pytest.mark.parametrize("scatters", [False, True])
@pytest.mark.parametrize(
    ("ours", "theirs", "words"),
    [
        (("BAND", torch.int32), ("BOR", torch.int32), ("int32, band", "int32, bor")),
        (("BXOR", torch.int64), ("BAND", torch.int64), ("int64, bxor", "int64, band")),
        (("BOR", torch.int32), ("BOR", torch.uint32), ("int32, bor", "uint32, bor")),
        (("BOR", torch.int16), ("BOR", torch.uint16), ("int16, bor", "uint16, bor")),
        (("BOR", torch.uint8), ("SUM", torch.uint8), ("uint8, bor", "uint8, sum")),
    ],
)
def test_ranks_that_differ_in_a_bitwise_operator_are_told(
    torch_ranks, scatters, ours, theirs, words
):
    """All of them, of both; no tensor is touched and the next call is in order."""

    def body():
        op, dtype = theirs if dist.get_rank() == 1 else ours
        tensor, before = mine(12, dtype), mine(12, dtype)
        block = torch.zeros(4, dtype=dtype)
        call, args = dist.all_reduce, [tensor]
        if scatters:
            call, args = dist.reduce_scatter_tensor, [block, tensor]
        with pytest.raises(braid.InvalidArgument) as caught:
            call(*args, getattr(dist.ReduceOp, op))
        for word in words:
            assert word in str(caught.value)
        same(tensor, before)
        assert not block.any()
        dist.barrier()

    torch_ranks(3, body)


def test_bools(torch_ranks):
    def body():
        a, b = all_ranks(50, torch.bool)
        for name, want in {
            "SUM": a | b,
            "MAX": a | b,
            "BOR": a | b,
            "PRODUCT": a & b,
            "MIN": a & b,
            "BAND": a & b,
            "BXOR": a ^ b,
        }.items():
            got = mine(50, torch.bool)
            dist.all_reduce(got, getattr(dist.ReduceOp, name))
            same(got, want)
        half = torch.empty(25, dtype=torch.bool)
        dist.reduce_scatter_tensor(half, mine(50, torch.bool), dist.ReduceOp.MAX)
        same(half, (a | b)[25 * dist.get_rank() :][:25])

    torch_ranks(2, body)


def test_complex_numbers(torch_ranks):
    def body():
        total = mine(9, torch.complex64)
        dist.all_reduce(total)
        same(total, sum(all_ranks(9, torch.complex64)))
        direct = mine(9, torch.complex128)
        dist.group.WORLD.allreduce([direct]).wait()  # dist.all_reduce would make it real first
        same(direct, sum(all_ranks(9, torch.complex128)))
        conjugate = mine(9, torch.complex64).conj()
        gathered = torch.empty(18, dtype=torch.complex64)
        dist.group.WORLD._allgather_base(gathered, conjugate).wait()  # torch's own form refuses it
        same(gathered, torch.cat(all_ranks(9, torch.complex64)).conj().resolve_conj())

    torch_ranks(2, body)


def test_premultiplied_sum(torch_ranks):
    """FSDP2 asks for it where the gradient is divided by something else than the ranks."""

    def body():
        n = dist.get_world_size()
        for factor in (0.25, torch.tensor([0.25])):
            op = dist._make_nccl_premul_sum(factor)
            got = mine(20)
            dist.all_reduce(got, op)
            same(got, sum(0.25 * t for t in all_ranks(20)))
            block = torch.empty(4)
            source = mine(4 * n)
            dist.reduce_scatter_tensor(block, source, op)
            same(block, sum(0.25 * t for t in all_ranks(4 * n))[4 * dist.get_rank() :][:4])
            same(source, mine(4 * n))

    torch_ranks(3, body)


def test_average_and_narrow_types(torch_ranks):
    def body():
        n = dist.get_world_size()
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            got = mine(31, dtype) * 2
            dist.all_reduce(got, dist.ReduceOp.AVG)
            same(got, (sum(all_ranks(31, torch.float32)) * 2 / n).to(dtype))
        small = mine(8).to(torch.float8_e4m3fn)
        dist.all_reduce(small)
        assert small.float().tolist() == sum(all_ranks(8)).to(torch.float8_e4m3fn).float().tolist()
        other = mine(8).to(torch.float8_e8m0fnu)  # can be moved, not summed
        dist.broadcast(other, 0)
        assert torch.equal(
            other.view(torch.uint8), all_ranks(8)[0].to(torch.float8_e8m0fnu).view(torch.uint8)
        )

    torch_ranks(2, body)


@pytest.mark.parametrize(
    ("op", "dtype"),
    [
        ("AVG", torch.bool),
        ("BAND", torch.float32),
        ("PRODUCT", torch.complex64),
        ("SUM", torch.float8_e8m0fnu),
        ("SUM", torch.complex32),
    ],
)
def test_what_cannot_be_reduced(op, dtype):
    with pytest.raises(braid.Unsupported, match=op):
        reduction_of("all_reduce", getattr(dist.ReduceOp, op), dtype)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.int32])
def test_what_cannot_be_scaled(torch_ranks, dtype):
    """The next call is in order."""

    def body():
        op = dist._make_nccl_premul_sum(0.5)
        if dist.get_rank() == 0:
            with pytest.raises(braid.Unsupported, match="PREMUL_SUM"):
                dist.all_reduce(mine(4).to(dtype), op)
        dist.barrier()

    torch_ranks(2, body)


def test_refused_before_anything_is_sent(torch_ranks):
    def body():
        with pytest.raises(braid.Unsupported, match=r"all_reduce.*AVG"):
            dist.all_reduce(torch.ones(2, dtype=torch.bool), dist.ReduceOp.AVG)
        with pytest.raises(braid.Unsupported, match="to_dense"):
            dist.all_reduce(torch.eye(3).to_sparse())
        with pytest.raises(braid.Unsupported, match="meta"):
            dist.all_reduce(torch.ones(2, device="meta"))
        with pytest.raises(braid.InvalidArgument, match="one dtype"):
            dist.group.WORLD.allreduce([torch.ones(2), torch.ones(2, dtype=torch.int32)])
        with pytest.raises(braid.InvalidArgument, match="asked for 6 elements, found 5"):
            dist.all_gather_into_tensor(torch.empty(5), torch.empty(3))
        with pytest.raises(braid.InvalidArgument, match="sum to the 4 rows"):
            dist.all_to_all_single(torch.empty(4), torch.empty(4), [2, 2], [1, 2])
        with pytest.raises(braid.InvalidArgument, match=r"root.*found 5"):
            dist.group.WORLD.broadcast(torch.empty(1), 5)
        total = torch.ones(1)
        dist.all_reduce(total)  # the group still works
        return total.item()

    assert torch_ranks(2, body) == [2, 2]
