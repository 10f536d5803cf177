"""Whether results are the same: again, on every rank, by both contestants, without them, and uncut.

A claim is a figure of the record: 1 where it held every time, 0 where it did not.
"""

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from contest import Contest
from llama import Cache, Layer, Sum, random, run_layers

from braid.plan.parallel.block import Shape

CLOSE = 0.02
"""Of the largest value: what bfloat16 may differ by when it is summed in another order."""
_TOKENS = 16
_AGAIN = 10


class Bits:
    """Collective: all ranks ask alike."""

    def __init__(self, contest: Contest) -> None:
        self._contest = contest
        self._first: dict[tuple[str, str], torch.Tensor] = {}
        self.figures: dict[str, float] = {}

    def note(self, what: str, calls: Mapping[str, Callable[[], Any]]) -> None:
        """Runs each contestant's call; its first result here is what all others must equal."""
        for who, call in calls.items():
            mine = call().cpu()
            first = self._first.setdefault((what, who), mine)
            prints = self._contest.told(_print_of(mine))
            is_same = torch.equal(mine, first) and len(set(prints)) == 1
            self._claim(f"{what}: {who} gives the same bits", is_same and is_finite(mine))
        self._across(what)

    def alone(self, what: str, call: Callable[[], torch.Tensor]) -> None:
        """Runs a call that has no collective in it again and again. Where its bits change, what
        changed in a pass says nothing about the collectives.
        """
        first = call()
        is_same = all(torch.equal(call(), first) for _ in range(_AGAIN))
        self._claim(f"{what} gives the same bits", is_same and is_finite(first))

    def uncut(self, cut: Layer, add: Sum) -> None:
        """A layer of all ranks and the same layer of one, on a short prompt."""
        whole = Layer(self._whole(cut), 0, 1, cut.device, cut.dtype, seed=0)
        x = random((1, _TOKENS, whole.shape.hidden), 5, cut.device, cut.dtype)
        ours = run_layers([cut], [Cache(cut, 1, _TOKENS)], x, 0, add)
        theirs = run_layers([whole], [Cache(whole, 1, _TOKENS)], x, 0, lambda _: None)
        gap = _gap(ours, theirs)
        self.figures["a layer cut and whole: largest gap"] = gap
        self._claim("a layer cut and whole agree", gap <= CLOSE)

    @property
    def are_right(self) -> bool:
        """Whether every claim held. Alike on all ranks."""
        return not self.failed

    @property
    def failed(self) -> list[str]:
        """The claims that did not hold."""
        claims = {name: value for name, value in self.figures.items() if "gap" not in name}
        return [name for name, value in claims.items() if value != 1]

    def _whole(self, cut: Layer) -> Shape:
        s, n = cut.shape, self._contest.size
        return Shape(
            s.tokens, s.hidden, s.heads * n, s.kv_heads * n, s.head_dim, s.intermediate * n
        )

    def _across(self, what: str) -> None:
        ours, theirs = (
            self._first[what, contestant.name] for contestant in self._contest.contestants
        )
        gap = _gap(ours, theirs)
        self.figures[f"{what}: largest gap between both"] = gap
        limit = 0.0 if self._contest.size == 2 else CLOSE
        self._claim(f"{what}: both agree", gap <= limit)

    def _claim(self, name: str, holds: bool) -> None:
        held = all(self._contest.told(holds)) and self.figures.get(name, 1.0) == 1.0
        self.figures[name] = float(held)


def is_finite(result: torch.Tensor) -> bool:
    """Whether there is no NaN and no infinity, which would agree with themselves."""
    return bool(result.isfinite().all()) and bool(result.any())


def _gap(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """The largest difference, of the largest value."""
    return float((ours.float() - theirs.float()).abs().max() / theirs.float().abs().max())


def _print_of(result: torch.Tensor) -> str:
    return hashlib.sha256(result.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()
