"""Words in columns."""

from collections.abc import Sequence


def align(rows: Sequence[Sequence[str]], right: frozenset[int] = frozenset()) -> list[str]:
    """Rows as lines whose columns are as wide as their widest word; `right` are set flush right."""
    count = max((len(row) for row in rows), default=0)
    full = [[*row, *[""] * (count - len(row))] for row in rows]
    widths = [max(len(row[i]) for row in full) for i in range(count)]
    return [
        "  ".join(
            word.rjust(width) if i in right else word.ljust(width)
            for i, (word, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in full
    ]
