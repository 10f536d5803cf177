"""What a user asked for and cannot have: one line, exit code 2."""

from collections.abc import Iterable
from difflib import get_close_matches

from braid.errors import InvalidArgument

_NEAR = 0.6
"""Of names that are alike: a slip of the finger or two; below it "mixtral" is "kimi-k2"."""
_LARGEST = 1e24
"""Above every number of bytes, parameters or operations; products of such stay finite."""


class PlanError(InvalidArgument):
    """The message names what was asked, what was found, and what there is."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that looks most like this one, or begins with it."""
    by_lower = {each.lower(): each for each in known}
    begun = [each for each in by_lower if name and each.startswith(f"{name.lower()}-")]
    found = begun or get_close_matches(name.lower(), by_lower, n=1, cutoff=_NEAR)
    return by_lower[found[0]] if found else None


def unknown(kind: str, name: str, known: Iterable[str], instead: str = "") -> PlanError:
    """No such name; the nearest one that exists comes first, what else is possible last."""
    names = sorted(known)
    near = nearest(name, names)
    hint = f"did you mean {near}? " if near else ""
    also = f", {instead}" if instead else ""
    return PlanError(f"'{name}' is no {kind}; {hint}braid has {', '.join(names)}{also}")


def at_least(what: str, value: float, least: float) -> None:
    """Refuses numbers that no machine has."""
    if not value >= least:  # NaN, too
        raise PlanError(f"{what}: asked for {value:g}, at least {least:g} is needed")
    if 0 < value <= 1 / _LARGEST:  # what is divided by it would be infinite
        raise PlanError(f"{what}: asked for {value:g}, no machine tells it from 0")
    _within(what, value)


def a_count(what: str, value: int, most: int = 100_000) -> None:
    """Refuses counts below 1, and those that no cluster or model comes near to."""
    if not 1 <= value <= most:
        raise PlanError(f"{what}: asked for {value:g}, it must be from 1 to {most:,}")


def above_zero(what: str, value: float) -> None:
    """Refuses zero, negative numbers and what is no number."""
    if not value > 1 / _LARGEST:
        raise PlanError(f"{what}: asked for {value:g}, it must be above 0")
    _within(what, value)


def _within(what: str, value: float) -> None:
    if value > _LARGEST:
        raise PlanError(f"{what}: asked for {value:g}, no machine has more than {_LARGEST:g}")


def a_part(what: str, value: float) -> None:
    """Refuses what is not above 0 and at most 1."""
    if not 1 / _LARGEST < value <= 1:
        raise PlanError(f"{what}: asked for {value:g}, it must be above 0 and at most 1")
