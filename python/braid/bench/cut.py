"""Sizes that are cut to whole elements, or blocks of them, are said before they are measured."""

import sys
from collections.abc import Iterable


def words(sizes: Iterable[tuple[str, int, int]]) -> str:
    """Of (operation, bytes asked for, bytes measured): one line; "" where nothing is cut."""
    cut = [each for each in sizes if each[1] != each[2]]
    if not cut:
        return ""
    op, asked, measured = cut[0]
    more = f"; {len(cut) - 1} more likewise" if len(cut) > 1 else ""
    return f"{op} of {asked:,} B is measured at {measured:,} B, in whole elements{more}"


def say(sizes: Iterable[tuple[str, int, int]]) -> None:
    """On standard error."""
    if line := words(sizes):
        print(f"braid: {line}", file=sys.stderr, flush=True)  # noqa: T201
