"""torch's collectives as calls of a braid.Comm. Each runs on tensors of one device.

Every rank of a group decides alike how a collective is done: from the operator and the sizes that
all ranks know, never from what only one rank sees. torch.distributed asks the same of its callers.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch

from braid.comm import Comm
from braid.torch.reduction import Reduction
from braid.torch.rows import as_bytes, put, row, written

if TYPE_CHECKING:
    from braid import Op

_PACKED_BYTES = 1 << 20  # of all_reduce_coalesced: what is shorter shares a call with others

Tensors = Sequence[torch.Tensor]


@dataclass(frozen=True)
class Call:
    """What a collective runs with."""

    comm: Comm

    @property
    def rank(self) -> int:
        return self.comm.rank

    @property
    def size(self) -> int:
        return self.comm.size


# ---- reductions ----


def _combined_block(call: Call, how: Reduction, numbers: torch.Tensor) -> torch.Tensor:
    """This rank's block of the reduction by how.combine; `numbers` divide by the ranks."""
    parts = call.comm._exchange_bits(numbers, how.op)
    arrived = parts.view(call.size, numbers.numel() // call.size)
    block = arrived[0].clone()
    for part in arrived[1:]:
        how.combine(block, part, out=block)
    return block


def _combine_all(call: Call, how: Reduction, numbers: torch.Tensor) -> None:
    length = -(-numbers.numel() // call.size) * call.size
    padded = torch.zeros(length, dtype=numbers.dtype, device=numbers.device)
    padded[: numbers.numel()] = numbers
    block = _combined_block(call, how, padded)
    whole = call.comm.all_gather(as_bytes(block)).view(numbers.dtype)
    numbers.copy_(whole[: numbers.numel()])


def _reduce_all(call: Call, how: Reduction, elements: torch.Tensor) -> None:
    """The reduction of every rank's row, in the row itself."""
    numbers, part = how.numbers(elements), how.part(elements)
    if how.combine is not None:
        return _combine_all(call, how, numbers)
    call.comm.all_reduce(part, cast("Op", how.op), out=None if part is numbers else numbers)
    return None


def all_reduce(call: Call, tensors: Tensors, how: Reduction) -> None:
    """Each tensor becomes its reduction over the ranks."""
    for tensor in tensors:
        with written(tensor, is_read=True) as elements:
            _reduce_all(call, how, elements)


def all_reduce_coalesced(
    call: Call, tensors: Tensors, how: Callable[[torch.dtype], Reduction]
) -> None:
    """The same for many tensors, of which short ones travel together: a sum does not depend on
    what lies beside it.
    """
    packs: dict[torch.dtype, list[torch.Tensor]] = {}
    for tensor in tensors:
        if tensor.numel() * tensor.element_size() < _PACKED_BYTES:
            packs.setdefault(tensor.dtype, []).append(tensor)
        else:
            all_reduce(call, [tensor], how(tensor.dtype))
    for dtype, pack in packs.items():
        together = torch.cat([row(tensor) for tensor in pack])
        _reduce_all(call, how(dtype), together)
        for tensor, part in zip(pack, together.split([t.numel() for t in pack]), strict=True):
            put(tensor, part)


def reduce(call: Call, tensor: torch.Tensor, root: int, how: Reduction) -> None:
    """The reduction in root's tensor; the others' are not touched.

    On GPUs, and where braid's operators do not do it, all ranks reduce, and all but root drop the
    result.
    """
    if how.combine is None and tensor.device.type == "cpu":
        return _reduce_at_root(call, tensor, root, how)
    if call.rank == root:
        return all_reduce(call, [tensor], how)
    return _reduce_all(call, how, row(tensor).clone())


def _reduce_at_root(call: Call, tensor: torch.Tensor, root: int, how: Reduction) -> None:
    op = cast("Op", how.op)
    if call.rank != root:
        call.comm.reduce(how.part(row(tensor)), op, root)
        return
    with written(tensor, is_read=True) as elements:
        call.comm.reduce(how.part(elements), op, root, how.numbers(elements))


def reduce_scatter(call: Call, out: torch.Tensor, elements: torch.Tensor, how: Reduction) -> None:
    """`out` becomes block `rank` of the reduction of every rank's row of size * out.numel()."""
    with written(out) as target:
        if how.combine is not None:
            how.numbers(target).copy_(_combined_block(call, how, how.numbers(elements)))
            return
        part = how.part(elements)
        call.comm.reduce_scatter(part, cast("Op", how.op), out=how.numbers(target))


def reduce_scatter_list(call: Call, out: torch.Tensor, inputs: Tensors, how: Reduction) -> None:
    """The same with one tensor per rank. Blocks of unequal size cost a whole all_reduce."""
    counts = [tensor.numel() for tensor in inputs]
    together = torch.cat([row(tensor) for tensor in inputs])
    if len(set(counts)) == 1:
        return reduce_scatter(call, out, together, how)
    _reduce_all(call, how, together)
    return put(out, together.split(counts)[call.rank])


# ---- moves ----


def broadcast(call: Call, tensors: Tensors, root: int) -> None:
    """Root's tensors in every rank's."""
    for tensor in tensors:
        with written(tensor, is_read=call.rank == root) as elements:
            call.comm.broadcast(as_bytes(elements), root)


def all_gather(call: Call, out: torch.Tensor, tensor: torch.Tensor) -> None:
    """Every rank's tensor, one after the other, in `out`."""
    with written(out) as target:
        call.comm.all_gather(as_bytes(row(tensor)), as_bytes(target))


def all_gather_list(call: Call, outputs: Tensors, tensor: torch.Tensor) -> None:
    """The same with one output per rank, whose sizes may differ: then each rank broadcasts."""
    if len({out.numel() for out in outputs}) > 1:
        put(outputs[call.rank], row(tensor))
        for root, out in enumerate(outputs):
            broadcast(call, [out], root)
        return
    gathered = call.comm.all_gather(as_bytes(row(tensor))).view(tensor.dtype)
    for out, part in zip(outputs, gathered.view(call.size, tensor.numel()), strict=True):
        put(out, part)


def gather(call: Call, outputs: Tensors, tensor: torch.Tensor, root: int) -> None:
    """Every rank's tensor in root's outputs."""
    sent = as_bytes(row(tensor))
    to_root = [sent.numel() if rank == root else 0 for rank in range(call.size)]
    from_all = [sent.numel() if call.rank == root else 0] * call.size
    arrived = call.comm.all_to_all(sent, None, to_root, from_all)
    if call.rank == root:
        parts = arrived.view(tensor.dtype).view(call.size, tensor.numel())
        for out, part in zip(outputs, parts, strict=True):
            put(out, part)


def scatter(call: Call, out: torch.Tensor, inputs: Tensors, root: int) -> None:
    """Root's input number `rank` in each rank's `out`."""
    if call.rank == root:
        sent = as_bytes(torch.cat([row(tensor) for tensor in inputs]))
    else:
        sent = as_bytes(torch.empty(0, dtype=out.dtype, device=out.device))
    with written(out) as target:
        block = as_bytes(target)
        from_root = [block.numel() if rank == root else 0 for rank in range(call.size)]
        to_all = [block.numel() if call.rank == root else 0] * call.size
        call.comm.all_to_all(sent, block, to_all, from_root)


# ---- all to all ----


def all_to_all(call: Call, out: torch.Tensor, tensor: torch.Tensor) -> None:
    """Equal blocks: block j of the tensor goes to rank j."""
    with written(out) as target:
        call.comm.all_to_all(as_bytes(row(tensor)), as_bytes(target))


def all_to_all_counts(
    call: Call, target: torch.Tensor, received: list[int], sent: torch.Tensor, counts: list[int]
) -> None:
    """Rows with `counts` elements for each rank and `received` from each."""
    width = sent.element_size()
    to_each, from_each = [n * width for n in counts], [n * width for n in received]
    call.comm.all_to_all(as_bytes(sent), as_bytes(target), to_each, from_each)


def all_to_all_rows(
    call: Call, out: torch.Tensor, tensor: torch.Tensor, received: list[int], counts: list[int]
) -> None:
    """Uneven: counts[j] elements go to rank j, received[i] come from rank i."""
    with written(out) as target:
        all_to_all_counts(call, target, received, row(tensor), counts)


def all_to_all_list(call: Call, outputs: Tensors, inputs: Tensors) -> None:
    """inputs[j] goes to rank j; outputs[i] comes from rank i. Sizes may differ."""
    sent = torch.cat([row(tensor) for tensor in inputs])
    received = [out.numel() for out in outputs]
    arrived = torch.empty(sum(received), dtype=sent.dtype, device=sent.device)
    all_to_all_counts(call, arrived, received, sent, [tensor.numel() for tensor in inputs])
    for out, part in zip(outputs, arrived.split(received), strict=True):
        put(out, part)
