"""Ratios of times in words: what is slower never reads as equal. Pure."""

import math

EQUAL = 0.02
"""Within this part of 1 neither is called faster: as much as the suite takes for no worse."""


def ratio_words(ratio: float) -> str:
    """Another's time by braid's, `1.32x`. Just below 1 it is cut, not rounded: 0.998x."""
    text = f"{ratio:.2f}"
    if ratio < 1 and text == "1.00":
        text = f"{math.floor(1000 * ratio) / 1000:.3f}"
    return f"{text}x"


def part_words(part: float) -> str:
    """Braid's time by another's. Just above 1: 1.003x."""
    text = f"{part:.2f}"
    if part > 1 and text == "1.00":
        text = f"{math.ceil(1000 * part) / 1000:.3f}"
    return f"{text}x"


def verdict(ratio: float) -> str:
    """Of another's time by braid's."""
    if abs(ratio - 1) <= EQUAL:
        return "equal"
    return "faster" if ratio > 1 else "slower"
