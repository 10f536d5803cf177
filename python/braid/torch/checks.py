"""What one rank can see to be wrong in a call's tensors: InvalidArgument at the call, before
anything is sent.
"""

from collections.abc import Sequence
from typing import SupportsIndex

import torch

from braid.torch.errors import InvalidArgument
from braid.torch.rows import check_count

Tensors = Sequence[torch.Tensor]


def check_rank(function: str, argument: str, rank: int, size: int) -> None:
    """`rank` must be one of the group's."""
    if not 0 <= rank < size:
        raise InvalidArgument(
            f"{function}: argument {argument}: asked for a rank of the group, 0 to {size - 1},"
            f" found {rank}"
        )


def check_tag(function: str, tag: object) -> None:
    """A message's tag must fit the wire's 64 bits."""
    if not isinstance(tag, SupportsIndex) or not -(1 << 63) <= tag.__index__() < 1 << 63:
        raise InvalidArgument(
            f"{function}: argument tag: asked for a whole number of 64 bits, found {tag!r:.80}"
        )


def check_list(function: str, argument: str, found: int, wanted: int) -> None:
    """A list must have a tensor per rank."""
    if found != wanted:
        raise InvalidArgument(
            f"{function}: argument {argument}: asked for {wanted} tensors (one per rank), found"
            f" {found}"
        )


def check_each(function: str, argument: str, tensors: Tensors, size: int, count: int) -> None:
    """A list must have a tensor of `count` elements per rank."""
    check_list(function, argument, len(tensors), size)
    for tensor in tensors:
        check_count(function, argument, tensor.numel(), count)


def check_one(
    function: str, argument: str, tensors: Tensors, size: int, rank: int, count: int
) -> None:
    """A list must have a tensor per rank, and `count` elements in that of `rank`."""
    check_list(function, argument, len(tensors), size)
    check_count(function, f"{argument} of this rank", tensors[rank].numel(), count)


def check_coalesced(outputs: Sequence[Tensors], inputs: Tensors, size: int) -> None:
    """Of all_gather: one list per rank, each of as many tensors as there are inputs."""
    if len(outputs) != size:
        raise InvalidArgument(
            f"all_gather_coalesced: argument output lists: asked for {size} lists (one per rank),"
            f" found {len(outputs)}"
        )
    for each in outputs:
        if len(each) != len(inputs):
            raise InvalidArgument(
                "all_gather_coalesced: argument output lists: asked for one tensor per input,"
                f" {len(inputs)}, in each of them, found {len(each)}"
            )


def _rows(tensor: torch.Tensor) -> int:
    return tensor.shape[0] if tensor.dim() else 1


def check_divides(argument: str, tensor: torch.Tensor, size: int) -> None:
    """The tensor of an all_to_all without split sizes: a rank's block is whole rows, as torch says,
    and so never a part of an element.
    """
    if _rows(tensor) % size:
        raise InvalidArgument(
            f"all_to_all: argument {argument}: asked for a first axis that {size} ranks"
            f" divide, found {_rows(tensor)}; give split sizes"
        )


def split_elements(argument: str, tensor: torch.Tensor, counts: list[int], size: int) -> list[int]:
    """Elements of each rank's block of all_to_all along the first axis. An empty list: equal
    blocks.
    """
    rows = _rows(tensor)
    if not counts:
        check_divides(argument, tensor, size)
        counts = [rows // size] * size
    if len(counts) != size or sum(counts) != rows or min(counts) < 0:
        raise InvalidArgument(
            f"all_to_all: argument {argument} split sizes: asked for {size} that sum to the {rows}"
            f" rows of the tensor, found {counts}"
        )
    width = tensor.numel() // rows if rows else 0
    return [n * width for n in counts]
