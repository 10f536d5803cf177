"""What a rank holds of a model's KV cache, and which part of it another rank lacks. Pure.

A page holds `page_tokens` tokens of one layer, heads first: [heads here, page_tokens, token_bytes].
So the heads that a rank of another tensor-parallel degree wants of a page lie side by side: one
write for each page and layer, whatever the degrees.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Self, SupportsIndex

from braid.errors import InvalidArgument

SAME = ("model", "dtype", "layers", "heads", "page_tokens", "token_bytes", "tail_bytes")
"""The fields in which two sides must agree."""


@dataclass(frozen=True, slots=True)
class Layout:
    """One rank's part of a cache.

    model        whatever tells models apart: a name, a hash of the configuration
    dtype        of the elements, in words
    layers       of the whole model
    heads        KV heads of the whole model; 1 where all ranks hold the same (MLA)
    page_tokens  tokens of a page
    token_bytes  of one token, one head, one layer: keys and values together
    tail_bytes   what goes over once behind all pages (hidden states, logits); 0: nothing
    tp, rank     the tensor-parallel degree, and which of its ranks this is. With more ranks than
                 heads several hold the same head
    first_layer, layers_here    of a pipeline stage; 0 layers here means all
    """

    model: str
    dtype: str
    layers: int
    heads: int
    page_tokens: int
    token_bytes: int
    tail_bytes: int = 0
    tp: int = 1
    rank: int = 0
    first_layer: int = 0
    layers_here: int = 0

    def __post_init__(self) -> None:
        for name in ("model", "dtype"):
            if not isinstance(words := getattr(self, name), str):
                found = f"{words!r:.80} ({type(words).__name__})"
                raise InvalidArgument(f"layout: {name}: asked for a str, found {found}")
        for name in ("layers", "heads", "page_tokens", "token_bytes", "tp"):
            _at_least(self, name, 1)
        for name in ("tail_bytes", "rank", "first_layer", "layers_here"):
            _at_least(self, name, 0)
        if self.rank >= self.tp:
            raise InvalidArgument(f"layout: rank: asked for 0 to {self.tp - 1}, found {self.rank}")
        if self.heads % self.tp and self.tp % self.heads:
            raise InvalidArgument(
                f"layout: {self.heads} heads cannot be shared evenly by {self.tp} ranks"
            )
        if not self.layers_here:
            object.__setattr__(self, "layers_here", self.layers - self.first_layer)
        if not 0 < self.layers_here <= self.layers - self.first_layer:
            raise InvalidArgument(
                f"layout: {self.layers_here} layers from layer {self.first_layer} on, the model "
                f"has {self.layers}"
            )

    @property
    def heads_here(self) -> int:
        return max(1, self.heads // self.tp)

    @property
    def first_head(self) -> int:
        return self.rank * self.heads // self.tp

    @property
    def head_bytes(self) -> int:
        """Bytes of one head's part of a page."""
        return self.page_tokens * self.token_bytes

    @property
    def page_bytes(self) -> int:
        """Bytes of a page of one layer, as this rank holds it."""
        return self.heads_here * self.head_bytes

    def pages_of(self, tokens: int) -> int:
        """How many pages `tokens` tokens take."""
        return -(-tokens // self.page_tokens)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: object) -> Self:
        """InvalidArgument for what is no layout: it comes from a peer."""
        kinds = {field.name: field.type for field in fields(cls)}
        if not isinstance(data, dict) or data.keys() != kinds.keys():
            raise InvalidArgument(f"layout: asked for the fields of Layout, found {data!r:.200}")
        for name, kind in kinds.items():
            if type(data[name]) is not kind:
                raise InvalidArgument(f"layout: {name}: asked for {kind}, found {data[name]!r:.99}")
        return cls(**data)


def _at_least(layout: Layout, name: str, least: int) -> None:
    """Checks a field, and makes it an int: peers are told of it, and JSON takes no NumPy number."""
    value = getattr(layout, name)
    if not isinstance(value, SupportsIndex) or isinstance(value, bool):
        found = f"{value!r:.80} ({type(value).__name__})"
        raise InvalidArgument(f"layout: {name}: asked for a whole number, found {found}")
    if value.__index__() < least:
        raise InvalidArgument(f"layout: {name}: asked for {least} or more, found {value}")
    object.__setattr__(layout, name, value.__index__())


def difference(mine: Layout, theirs: Layout, names: tuple[str, str]) -> str | None:
    """The first field in which the two disagree, in words; `names` are the engines'."""
    for field in SAME:
        here, there = getattr(mine, field), getattr(theirs, field)
        if here != there:
            return f"layout: {field}: {here!r} at '{names[0]}', {there!r} at '{names[1]}'"
    return None


@dataclass(frozen=True, slots=True)
class Slice:
    """What one rank gets from one other: some heads of some layers, of every page."""

    source: int
    """Its number among the sources."""
    layers: range
    """Numbered as in the model."""
    source_head: int
    target_head: int
    """The first head, counted from the first one that each side holds."""
    heads: int


def cover(mine: Layout, sources: Sequence[Layout], salt: int = 0) -> list[Slice]:
    """What the rank `mine` gets from which of `sources`: each head of each layer once.

    Where several hold the same heads, `salt` and the rank choose, so that ranks and requests spread
    over them. InvalidArgument names what nobody holds.
    """
    out: list[Slice] = []
    layer, last = mine.first_layer, mine.first_layer + mine.layers_here
    while layer < last:
        stage = [
            (number, source)
            for number, source in enumerate(sources)
            if source.first_layer <= layer < source.first_layer + source.layers_here
        ]
        end = min([last, *(source.first_layer + source.layers_here for _, source in stage)])
        if not stage:
            raise InvalidArgument(f"layout: nobody of {len(sources)} prefillers has layer {layer}")
        out += _heads(mine, stage, range(layer, end), salt)
        layer = end
    return out


def _heads(
    mine: Layout, stage: Sequence[tuple[int, Layout]], layers: range, salt: int
) -> list[Slice]:
    out = []
    head, last = mine.first_head, mine.first_head + mine.heads_here
    while head < last:
        holders = [
            (number, source)
            for number, source in stage
            if source.first_head <= head < source.first_head + source.heads_here
        ]
        if not holders:
            raise InvalidArgument(
                f"layout: nobody has head {head} of layer {layers[0]}: {len(stage)} prefillers "
                "have that layer"
            )
        number, source = holders[(salt + mine.rank) % len(holders)]
        end = min(last, source.first_head + source.heads_here)
        out.append(
            Slice(number, layers, head - source.first_head, head - mine.first_head, end - head)
        )
        head = end
    return out


def consumers(group: Sequence[Layout], sources: Sequence[Layout], salt: int = 0) -> list[int]:
    """How many ranks of the decoder's `group` get something from each source."""
    taken = [{part.source for part in cover(layout, sources, salt)} for layout in group]
    return [sum(number in those for those in taken) for number in range(len(sources))]


def whole_group(mine: Layout) -> list[Layout]:
    """The layouts of all ranks of a group with tensor parallelism alone, from one of them."""
    return [replace(mine, rank=rank) for rank in range(mine.tp)]
