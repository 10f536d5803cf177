"""One block of a decoder on one of the ranks that share it: its parts, and what it takes.

A block is eight parts in order and two all-reduces, one after attention and one after the MLP:
nothing runs beside anything else. So its time is the sum of theirs, and what a measured block takes
beyond that is what the sum leaves out.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from braid.plan.formulas import messages
from braid.plan.model import Model
from braid.plan.parallel.tensor import PER_LAYER
from braid.plan.wrong import PlanError, a_count, at_least

ATTENTION = ("norm", "qkv", "attention", "out")
MLP = ("norm", "up", "activation", "down")
"""Parts before each all-reduce. The norms have the residual's sum in them."""


@dataclass(frozen=True)
class Shape:
    """A rank's part of a block."""

    tokens: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int

    @classmethod
    def of(cls, model: Model, ranks: int, tokens: int) -> "Shape":
        """PlanError for a model whose blocks are cut otherwise, or not into so many parts."""
        a_count("--ranks", ranks)
        at_least("--tokens", tokens, 1)
        if not model.is_plain:
            raise PlanError(
                f"{model.name}: a block here has grouped attention and a dense, gated MLP;"
                " try llama3-8b, llama3-70b or llama3-405b"
            )
        for what, count in (("heads", model.heads), ("columns of the MLP", model.intermediate)):
            if count % ranks:
                raise PlanError(f"{model.name}: {count} {what} do not divide over {ranks} ranks")
        kv_heads = max(model.kv_heads // ranks, 1)  # more ranks than these keep a copy each
        return cls(
            tokens, model.hidden, model.heads // ranks, kv_heads, model.head_dim,
            model.intermediate // ranks,
        )  # fmt: skip

    @property
    def qkv_columns(self) -> int:
        """Of queries, keys and values together."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    @property
    def parameters(self) -> int:
        """Of the four matrices, on this rank."""
        attention = self.hidden * (self.qkv_columns + self.heads * self.head_dim)
        return attention + 3 * self.hidden * self.intermediate

    def payload_bytes(self, element_bytes: int) -> int:
        """Of one all-reduce."""
        return messages.activation_bytes(self.tokens, self.hidden, element_bytes)


def block_us(parts_us: Mapping[str, float], all_reduce_us: float) -> float:
    """The time of a block out of those of its parts."""
    return sum(parts_us[part] for part in (*ATTENTION, *MLP)) + PER_LAYER * all_reduce_us
