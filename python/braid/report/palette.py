"""Colours and marks: every contestant of a picture differs from every other by both.

Any two colours of a theme are at least 0.085 apart in OKLab, and stand out from their page by 3 to
1 and more; tests compute both. Where a picture has more contestants than colours, marks differ.
"""

from collections.abc import Sequence

COLOURS = (
    "#12609c", "#c46a00", "#2f7d46", "#8250a8", "#b3343a", "#66707a",
    "#008a94", "#d04a8f", "#6b4a1f", "#7d7a00", "#3d3fa8", "#1d2733",
)  # fmt: skip
DARK = (
    "#6db1ea", "#f2a65a", "#7fc795", "#c39ae0", "#f08a8f", "#a9b4bf",
    "#3fd0d4", "#ff6fd0", "#b07f4c", "#d6d05a", "#7f86ff", "#ffffff",
)  # fmt: skip
MARKS = ("circle", "square", "triangle", "diamond")
_RADIUS = 3.4


def colour(place: int) -> str:
    """CSS class of the place's colour."""
    return f"c{place % len(COLOURS)}"


def mark_at(place: int) -> int:
    """The place's mark: places of one colour have different ones."""
    return (place + place // len(COLOURS)) % len(MARKS)


def mark(kind: int, x: float, y: float, style: str, said: str) -> str:
    """A mark as SVG; `said` is markup inside it."""
    r = _RADIUS
    if MARKS[kind] == "circle":
        return f'<circle class="dot {style}" cx="{x:g}" cy="{y:g}" r="3">{said}</circle>'
    shapes = {
        "square": f"M{x - 3:g} {y - 3:g}h6v6h-6z",
        "triangle": f"M{x:g} {y - r - 0.6:g}l{r + 0.4:g} 6.6h{-2 * r - 0.8:g}z",
        "diamond": f"M{x:g} {y - r - 0.8:g}l4.2 4.2l-4.2 4.2l-4.2 -4.2z",
    }
    return f'<path class="dot {style}" d="{shapes[MARKS[kind]]}">{said}</path>'


def rules() -> str:
    """CSS for both themes."""

    def of(palette: Sequence[str]) -> str:
        parts = (
            f".curve.c{i}{{stroke:{c}}}.dot.c{i}{{fill:{c}}}.share .c{i}{{background:{c}}}"
            for i, c in enumerate(palette)
        )
        return "".join(parts)

    dark = f"@media screen and (prefers-color-scheme:dark){{{of(DARK)}.share span{{color:#111}}}}"
    return of(COLOURS) + dark
