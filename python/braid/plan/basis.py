"""Every number of `braid plan` says what it rests on."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Basis(StrEnum):
    """What a number rests on, best first. "exact" is arithmetic on the question itself."""

    EXACT = "exact"
    MEASURED = "measured"
    SPECIFIED = "specified"
    ASSUMED = "assumed"


_ORDER = list(Basis)


def weakest(bases: Iterable[Basis]) -> Basis:
    """What a number rests on that was computed from several."""
    return max(bases, key=_ORDER.index, default=Basis.EXACT)


@dataclass(frozen=True)
class Quantity:
    """A number with its unit, what it rests on, and where it comes from in words."""

    value: float
    unit: str
    basis: Basis
    origin: str
