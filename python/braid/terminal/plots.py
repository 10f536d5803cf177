"""How plots look: one column that a phone shows at its full size, and in an SVG a dark version too.

matplotlib knows one theme. Its SVG names every colour in a style, so that rules for the reader's
dark theme can name a twin for each; letters without a colour take the picture's own.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from braid import json_file

WIDTH_IN = 4.9
"""353 points: as wide as a phone, so that letters of 10 points stay 10 pixels high there."""
LETTER, SMALL = 10, 9.5
_TITLE_LETTERS = 50  # of a line
_PAPER, _INK = "#12181f", "#e3e8ed"
_TWINS = {
    "#ffffff": _PAPER, "#000000": _INK, "#b8bec6": "#5b6875", "#b0b0b0": "#33404c",
    "#12355b": "#6db1ea", "#7f8a96": "#a9b4bf", "#0b2239": "#0b2239",
}  # fmt: skip
"""Of paper, ink and background, of braid's own blue, and of ink on cells, which stay bright. Other
colours are mixed with white until they stand out.
"""
_CONTRAST = 4.5
_COLOUR = re.compile(r"(fill|stroke): (#[0-9a-f]{6})")


def pyplot() -> Any:  # noqa: ANN401 - matplotlib has no types
    """matplotlib, set up."""
    import matplotlib as mpl

    mpl.use("agg")
    mpl.rcParams["svg.hashsalt"] = "braid"
    mpl.rcParams.update({"font.size": LETTER, "axes.titlesize": LETTER, "legend.fontsize": SMALL})
    mpl.rcParams.update({"xtick.labelsize": SMALL, "ytick.labelsize": SMALL})
    from matplotlib import pyplot as plt

    return plt


def column(heights_in: list[float], title: str) -> tuple[Any, list[Any]]:
    """A figure with a place for each height below the other, and the places."""
    import textwrap

    lines = textwrap.wrap(title, _TITLE_LETTERS)
    size = (WIDTH_IN, sum(heights_in) + 0.2 * len(lines))
    figure, grid = pyplot().subplots(
        len(heights_in), 1, figsize=size, layout="constrained", squeeze=False,
        gridspec_kw={"height_ratios": heights_in},
    )  # fmt: skip
    figure.suptitle("\n".join(lines), x=0.01, ha="left", weight="bold", fontsize=LETTER)
    places = [row[0] for row in grid]
    for axes in places:
        axes.spines[["top", "right"]].set_visible(False)
    return figure, places


def save(figure: Any, path: Path, date: str) -> None:  # noqa: ANN401 - matplotlib has no types
    """Writes the picture and closes it. The file's ending is the format."""
    is_svg = path.suffix == ".svg"
    with json_file.writing(path):
        figure.savefig(path, metadata={"Date": date} if is_svg else None)
        if is_svg:
            path.write_text(themed(path.read_text(encoding="utf-8")), encoding="utf-8")
    pyplot().close(figure)


def themed(svg: str) -> str:
    """The same picture with rules for a reader's dark theme."""
    rules = "".join(_rules(set(_COLOUR.findall(svg))))
    dark = f"@media screen and (prefers-color-scheme:dark){{svg{{fill:{_INK}}}{rules}}}"
    head, end, rest = svg.partition("</style>")
    return f"{head}{dark}{end}{rest}"


def _rules(found: set[tuple[str, str]]) -> Iterator[str]:
    for what, colour in sorted(found):
        yield f'[style*="{what}: {colour}"]{{{what}:{twin(colour)}!important}}'


def twin(colour: str) -> str:
    """Its version for dark paper."""
    if colour in _TWINS:
        return _TWINS[colour]
    for white in range(0, 100, 5):
        mixed = _mixed(colour, white / 100)
        if contrast(mixed, _PAPER) >= _CONTRAST:
            return mixed
    return "#ffffff"


def _channels(colour: str) -> list[int]:
    return [int(colour[i : i + 2], 16) for i in (1, 3, 5)]


def _mixed(colour: str, white: float) -> str:
    parts = (round(part + (255 - part) * white) for part in _channels(colour))
    return "#" + "".join(f"{part:02x}" for part in parts)


def contrast(one: str, other: str) -> float:
    """As WCAG reckons it: 1 to 21."""

    def light(colour: str) -> float:
        parts = (part / 255 for part in _channels(colour))
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return sum(a * b for a, b in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    dark, bright = sorted((light(one), light(other)))
    return (bright + 0.05) / (dark + 0.05)
