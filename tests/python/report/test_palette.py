"""Colours: apart from each other and from the page, in both themes."""

import itertools
import re

import pytest

from braid.report import palette


def linear(colour):
    """Red, green and blue of "#rrggbb", by light."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]


def contrast(a, b):
    """As WCAG counts: 1 to 21."""

    def light(colour):
        return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear(colour), strict=True))

    low, high = sorted((light(a), light(b)))
    return (high + 0.05) / (low + 0.05)


def oklab(colour):
    """Coordinates in which a distance is what an eye sees."""
    r, g, b = linear(colour)
    cones = [
        (0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b) ** (1 / 3),
        (0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b) ** (1 / 3),
        (0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b) ** (1 / 3),
    ]
    rows = (
        (0.2104542553, 0.7936177850, -0.0040720468),
        (1.9779984951, -2.4285922050, 0.4505937099),
        (0.0259040371, 0.7827717662, -0.8086757660),
    )
    return [sum(w * c for w, c in zip(row, cones, strict=True)) for row in rows]


@pytest.mark.parametrize(
    ("colours", "paper"), [(palette.COLOURS, "#ffffff"), (palette.DARK, "#12181f")]
)
def test_colours_are_told_apart(colours, paper):
    assert len(set(colours)) == 12
    for colour in colours:
        assert contrast(colour, paper) >= 3, colour
    for a, b in itertools.combinations(colours, 2):
        apart = sum((x - y) ** 2 for x, y in zip(oklab(a), oklab(b), strict=True)) ** 0.5
        assert apart >= 0.085, (a, b)


def test_rules_for_every_colour_in_both_themes():
    light, _, dark = palette.rules().partition("@media")
    for i in range(12):
        assert f".curve.c{i}{{stroke:{palette.COLOURS[i]}}}" in light
        assert f".dot.c{i}{{fill:{palette.DARK[i]}}}" in dark


def corners(path):
    """Of a closed outline of M, l, h and v."""
    found, x, y = [], 0.0, 0.0
    for step, words in re.findall(r"([Mlhv])([-\d. ]+)", path):
        numbers = [float(word) for word in words.split()]
        dx, dy = {"h": (numbers[0], 0.0), "v": (0.0, numbers[0])}.get(step, numbers)
        x, y = (dx, dy) if step == "M" else (x + dx, y + dy)
        found.append((x, y))
    return found


@pytest.mark.parametrize("kind", range(1, len(palette.MARKS)))
def test_marks_are_around_their_place(kind):
    drawn = palette.mark(kind, 40, 60, "c1", "<title>x</title>")
    assert drawn.startswith('<path class="dot c1" d="M')
    assert "<title>x</title></path>" in drawn
    for middle, across in zip(
        (40, 60), zip(*corners(drawn.split('"')[3]), strict=True), strict=True
    ):
        assert 2.9 <= middle - min(across) <= 4.5
        assert 2.5 <= max(across) - middle <= 4.5


def test_the_first_mark_is_a_dot():
    assert 'cx="40" cy="60" r="3"' in palette.mark(0, 40, 60, "c1", "")
