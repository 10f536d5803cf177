"""Tensors with strides, offsets and flags: a call means the elements, in logical order."""

import pytest
import torch
import torch.distributed as dist
from torch_backend_data import all_ranks, mine, same

from braid.torch.rows import as_bytes, put, row, written


def test_a_row_is_the_tensors_own_memory_where_that_is_contiguous():
    whole = torch.arange(12.0).view(3, 4)
    assert row(whole).data_ptr() == whole.data_ptr()
    assert row(whole[1:]).data_ptr() == whole[1:].data_ptr()
    assert row(whole.t()).tolist() == whole.t().flatten().tolist()
    assert row(torch.tensor(3.0)).tolist() == [3.0]
    assert as_bytes(row(whole)).numel() == 48
    conj = torch.tensor([1 + 2j]).conj()
    assert as_bytes(row(conj)).view(torch.complex64).tolist() == [1 - 2j]


@pytest.mark.parametrize("rows", [0, 1])
def test_a_column_of_one_element_or_none_has_bytes(rows):
    column = torch.arange(4.0).view(2, 2)[:rows, 1]  # contiguous, and its stride is 2
    assert as_bytes(row(column)).view(torch.float32).tolist() == [1.0] * rows
    with written(column) as elements:
        as_bytes(elements).zero_()
    assert column.tolist() == [0.0] * rows


def test_every_call_takes_a_column_of_one_element(torch_ranks):
    def column(value):
        return torch.full((2, 2), float(value))[:1, 1]

    def body():
        rank, n = dist.get_rank(), dist.get_world_size()
        got = column(rank)
        dist.broadcast(got, 1)
        assert got.tolist() == [1.0]
        whole = torch.zeros(n)
        dist.all_gather_into_tensor(whole, column(rank))
        assert whole.tolist() == list(range(n))
        parts = [column(-1) for _ in range(n)]
        dist.all_gather(parts, column(rank))
        assert [part.item() for part in parts] == list(range(n))
        dist.gather(column(rank), parts if rank == 0 else None)
        dist.scatter(got, [column(r + 5) for r in range(n)] if rank == 0 else None)
        assert got.tolist() == [rank + 5.0]
        dist.all_to_all(parts, [column(rank * n + r) for r in range(n)])
        assert [part.item() for part in parts] == [r * n + rank for r in range(n)]
        sent = dist.isend(column(rank), (rank + 1) % n)
        dist.recv(got, (rank - 1) % n)
        sent.wait()
        assert got.tolist() == [(rank - 1) % n]

    torch_ranks(2, body)


def test_written_back_only_when_the_body_succeeds():
    column = torch.zeros(3, 4)[:, 1]
    with written(column) as elements:
        elements.copy_(torch.tensor([1.0, 2.0, 3.0]))
    assert column.tolist() == [1, 2, 3]

    def fail():
        with written(column, is_read=True) as elements:
            assert elements.tolist() == [1, 2, 3]
            elements.zero_()
            raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011
        fail()
    assert column.tolist() == [1, 2, 3]


def test_put_into_any_strides():
    target = torch.zeros(2, 3).t()
    put(target, torch.arange(6.0))
    assert target.flatten().tolist() == [0, 1, 2, 3, 4, 5]


def test_collectives_on_strided_tensors(torch_ranks):
    def body():
        rank, n = dist.get_rank(), dist.get_world_size()
        backing = torch.full((6, 4), -1.0)
        column = backing[:, 2]
        column.copy_(mine(6))
        dist.all_reduce(column)
        same(column.contiguous(), sum(all_ranks(6)))
        assert (backing[:, [0, 1, 3]] == -1).all()
        # Strides may differ between ranks: the elements do not.
        matrix = mine(12).view(3, 4)
        mixed = matrix.t().contiguous().t() if rank == 0 else matrix
        dist.all_reduce(mixed)
        same(mixed.contiguous(), sum(all_ranks(12)).view(3, 4))
        out = torch.zeros(4, 3 * n).t()
        dist.all_gather_into_tensor(out, mine(12).view(3, 4).t().contiguous().t())
        same(out.contiguous(), torch.cat([t.view(3, 4) for t in all_ranks(12)]))
        swapped = torch.zeros(n, 2 * n)[:, ::2]
        dist.all_to_all_single(swapped, mine(n * n).view(n, n).t().contiguous().t())
        same(swapped[0], all_ranks(n * n)[0].view(n, n)[rank])
        image = torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
        dist.broadcast(image, 0)
        with pytest.raises(RuntimeError, match="single memory location"):
            dist.all_reduce(torch.ones(1).expand(5))

    torch_ranks(2, body)


def test_parameters_and_views_that_need_gradients(torch_ranks):
    def body():
        weight = torch.nn.Parameter(mine(6))
        dist.broadcast(weight, 1)
        same(weight.data, all_ranks(6)[1])
        dist.all_reduce(weight)
        same(weight.data, 2 * all_ranks(6)[1])
        with torch.inference_mode():
            inside = mine(5)
        dist.all_reduce(inside, async_op=True).wait()
        same(inside.clone(), sum(all_ranks(5)))
        return weight.requires_grad

    assert torch_ranks(2, body) == [True, True]
