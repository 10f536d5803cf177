"""What collectives do for tensors on GPUs: the same code on host memory that passes for a GPU's,
with a stand-in for torch.cuda.
"""

import pytest
import torch
import torch.distributed as dist
from torch_backend_cuda import GPU, FakeCuda
from torch_backend_data import all_ranks, mine, same

import braid
import braid.torch.comms


@pytest.fixture
def gpu_ranks(torch_ranks, monkeypatch):
    """As torch_ranks, with CPU tensors that count as tensors of a GPU."""
    monkeypatch.setattr(torch, "cuda", FakeCuda())
    monkeypatch.setattr(braid.torch.comms, "device_of", lambda _name, _tensors: GPU)
    return torch_ranks


def test_uneven_all_to_all(gpu_ranks):
    def body():
        rank, n = dist.get_rank(), dist.get_world_size()
        sent, received = [3 * rank + j for j in range(n)], [3 * i + rank for i in range(n)]
        rows = torch.arange(sum(sent) * 2).view(-1, 2) + 1000 * rank
        got = torch.empty(sum(received), 2, dtype=torch.int64)
        dist.all_to_all_single(got, rows, received, sent)
        for i, part in enumerate(got.split(received)):
            before = sum(3 * i + j for j in range(rank))
            want = torch.arange(2 * before, 2 * (before + received[i])) + 1000 * i
            same(part.flatten(), want)
        outs = [torch.empty(k, 2, dtype=torch.int64) for k in received]
        dist.all_to_all(outs, list(rows.split(sent)))
        same(torch.cat(outs), got)
        even = torch.empty(n)
        dist.all_to_all_single(even, mine(n))
        same(even, torch.stack([t[rank] for t in all_ranks(n)]))
        assert list(dist.group.WORLD._comms._made) == ["cuda"]  # the host was not asked

    gpu_ranks(3, body)


def test_gather_and_scatter(gpu_ranks):
    def body():
        rank, n = dist.get_rank(), dist.get_world_size()
        for dtype in (torch.float64, torch.bool):
            every = all_ranks(7, dtype)
            parts = [torch.empty(7, dtype=dtype) for _ in range(n)] if rank == 1 else None
            dist.gather(mine(7, dtype), parts, dst=1)
            for part, want in zip(parts or [], every, strict=False):
                same(part, want)
            got = torch.empty(7, dtype=dtype)
            dist.scatter(got, every if rank == 2 else None, src=2)
            same(got, every[rank])

    gpu_ranks(3, body)


def test_every_other_call(gpu_ranks):
    def body():
        n = dist.get_world_size()
        works = []
        for salt in range(4):
            tensor = mine(100, salt=salt)
            works.append((dist.all_reduce(tensor, async_op=True), tensor, salt))
        for work, tensor, salt in works:
            work.wait()
            same(tensor, sum(all_ranks(100, salt=salt)))
        whole = torch.empty(4, 2 * n).t()
        dist.all_gather_into_tensor(whole, mine(8).view(2, 4))
        same(whole.contiguous(), torch.cat([t.view(2, 4) for t in all_ranks(8)]))
        bits = mine(9, torch.int32)
        dist.all_reduce(bits, dist.ReduceOp.BXOR)
        a, b = all_ranks(9, torch.int32)
        same(bits, a ^ b)
        block = torch.empty(3)
        dist.reduce_scatter_tensor(block, mine(3 * n), dist._make_nccl_premul_sum(0.5))
        same(block, (sum(all_ranks(3 * n)) / 2)[3 * dist.get_rank() :][:3])
        dist.barrier()
        fences = [line for line in torch.cuda.log if line.startswith("host waits")]
        assert len(fences) == 2  # the caller's stream and the group's

    gpu_ranks(2, body)


def test_captures(gpu_ranks):
    def body():
        torch.cuda.is_capturing = True
        with pytest.raises(braid.InvalidArgument, match="first call of a group on a GPU"):
            dist.all_reduce(mine(3))
        torch.cuda.is_capturing = False
        dist.all_reduce(mine(3))
        torch.cuda.is_capturing = True
        total = mine(3)
        dist.all_reduce(total)
        same(total, sum(all_ranks(3)))
        rank, got = dist.get_rank(), torch.empty(3)
        splits = [[1, 2], [2, 1]]  # [from][to], and the other way round
        dist.all_to_all_single(got, mine(3), splits[rank], splits[rank])
        sent = zip(all_ranks(3), splits, strict=True)
        same(got, torch.cat([row.split(counts)[rank] for row, counts in sent]))
        torch.cuda.is_capturing = False

    gpu_ranks(2, body)


def test_errors_and_the_end(gpu_ranks):
    def body():
        group = dist.new_group()
        with pytest.raises(braid.InvalidArgument):
            dist.all_reduce(mine(4 + dist.get_rank()), group=group)
        total = mine(2)
        dist.all_reduce(total, group=group)
        dist.destroy_process_group(group)
        with pytest.raises(braid.InvalidArgument, match="was destroyed"):
            group.allreduce([total]).wait()
        return total.tolist()

    assert gpu_ranks(2, body) == [[3, 13]] * 2
