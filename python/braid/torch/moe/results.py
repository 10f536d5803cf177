"""What a low-latency dispatch fills in a GPU's memory, and where it lies there."""

from math import prod

import torch

from braid import _braid
from braid.moe import low_latency

TICKET_BYTES = _braid.moe.ticket_bytes
TICKET_WORDS = TICKET_BYTES // 4
NO_COPIES = (0,) * 4
_ALIGNED_BYTES = 256  # what parts of one piece of memory begin at

Tensors = tuple[torch.Tensor | None, ...]


def address(tensor: torch.Tensor | None) -> int:
    """A core's word for it: its address, 0 where there is none."""
    return 0 if tensor is None else tensor.data_ptr()


class _Part:
    """Of one piece of memory: where it begins, in bytes, and how it is seen as a tensor."""

    def __init__(self, begin: int, shape: tuple[int, ...], dtype: str) -> None:
        self.begin, self.shape, self.item_bytes = begin, shape, 8 if dtype == "int64" else 4
        strides = tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))
        self.view = shape, strides, begin // self.item_bytes

    @property
    def end(self) -> int:
        return self.begin + self.item_bytes * prod(self.shape)


class _Room:
    """All that a dispatch fills but rows and scales, as parts of one piece of memory: to see a part
    as a tensor takes the host half as long as an allocation, and what only braid reads is none.
    """

    def __init__(self, form: low_latency.DispatchForm) -> None:
        end = 0

        def part(shape: tuple[int, ...], dtype: str) -> _Part:
            nonlocal end
            made = _Part(end, shape, dtype)
            end = -(-made.end // _ALIGNED_BYTES) * _ALIGNED_BYTES
            return made

        self.ticket = part((TICKET_WORDS,), "int32")
        self.count, self.ranges = part(*form.count), part(*form.ranges)
        self.src_info, self.slots = part(*form.src_info), part(*form.src_info)
        self.copies = [part(*each) for each in form.copies]
        self.memory = (end // 8,), "int64"


class _Kept:
    """Of one dispatch: its memory, and the addresses of what a combine reads."""

    def __init__(self, room: _Room, memory: torch.Tensor, ints: torch.Tensor) -> None:
        self.memory, self._room, self._ints = memory, room, ints
        self.at = at = memory.data_ptr()  # and so the ticket's
        self.slots, self.ranges = at + room.slots.begin, at + room.ranges.begin
        self.copies_at = tuple([at + each.begin for each in room.copies]) or NO_COPIES

    @property
    def copies(self) -> Tensors | None:
        """As tensors: counts, tokens, places, weights."""
        found = [self._ints.as_strided(*each.view) for each in self._room.copies]
        return (*found[:3], found[3].view(torch.float32)) if found else None


class LowLatencyResults:
    """Memory for what a dispatch fills. Nothing is written here: kernels write zeros, too, where no
    rows come.
    """

    def __init__(self, form: low_latency.DispatchForm) -> None:
        empty = form.new.empty
        if form.room is None:
            form.room = _Room(form)
        self._room: _Room = form.room
        self.x = empty(*form.x)
        self.scales = None if form.scales is None else empty(*form.scales)
        memory = empty(*self._room.memory)
        ints = memory.view(torch.int32)
        self.count = ints.as_strided(*self._room.count.view)
        self.ranges = memory.as_strided(*self._room.ranges.view)
        self.src_info = ints.as_strided(*self._room.src_info.view)
        self.kept = _Kept(self._room, memory, ints)

    def addresses(self, stats: torch.Tensor | None, waits: torch.Tensor | None) -> tuple[int, ...]:
        """In the order of a core's call."""
        room, kept = self._room, self.kept
        return (
            self.x.data_ptr(), address(self.scales), kept.at + room.count.begin,
            kept.at + room.src_info.begin, kept.slots, kept.ranges, address(stats), address(waits),
            *kept.copies_at,
        )  # fmt: skip

    def forget(self) -> None:
        """Nobody will fill it: what makes addresses of its numbers finds none."""
        self.count.zero_(), self.ranges.zero_()
        if (copies := self.kept.copies) is not None:
            copies[0].zero_()  # type: ignore[union-attr]
