"""Bars in time: as text for a terminal, as SVG for a page. The same input gives the same bytes.

A chart is a list of strips, and a strip a list of spans. Colours hold on white and on black.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

KINDS = {
    "computation": ("#", "#1b6ca8"),
    "communication": ("=", "#e08e1b"),
    "waiting": (".", "#9aa3ad"),
}
_LABEL_PX, _BAR_PX, _VALUE_PX, _ROW_PX = 190, 420, 90, 24
_TOP_PX = 54
_LEAST_BAR, _MOST_BAR = 10, 60
_BLANKS = 3  # around a bar


@dataclass(frozen=True)
class Span:
    """Something that takes time."""

    kind: str
    start_s: float
    length_s: float


@dataclass(frozen=True)
class Strip:
    """One line of a chart."""

    label: str
    spans: tuple[Span, ...]

    @property
    def end_s(self) -> float:
        """When its last span is over."""
        return max((span.start_s + span.length_s for span in self.spans), default=0.0)


def stacked(label: str, parts: Sequence[tuple[str, float]]) -> Strip:
    """Parts one after the other."""
    spans, at = [], 0.0
    for kind, length in parts:
        spans.append(Span(kind, at, length))
        at += length
    return Strip(label, tuple(spans))


def time_text(seconds: float) -> str:
    """Three digits and a unit."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= 0.9995 * scale:  # 999.6 us are a millisecond in three digits
            return f"{seconds / scale:.3g} {unit}" if seconds < 999.5 else f"{seconds:.0f} s"
    return f"{seconds * 1e6:.3g} us"


def as_text(strips: Sequence[Strip], width: int = _MOST_BAR) -> str:
    """Plain ASCII; the longest strip fills `width`."""
    whole = max((strip.end_s for strip in strips), default=0.0) or 1.0
    label_width = max((len(strip.label) for strip in strips), default=0)
    lines = []
    for strip in strips:
        cells = [" "] * width
        for span in strip.spans:
            first = round(span.start_s / whole * width)
            last = round((span.start_s + span.length_s) / whole * width)
            cells[first:last] = KINDS[span.kind][0] * (last - first)
        bar = "".join(cells).rstrip()
        lines.append(f"{strip.label:<{label_width}}  {bar} {time_text(strip.end_s)}")
    used = _kinds(strips)
    legend = "   ".join(f"{KINDS[kind][0]} {kind}" for kind in used)
    return "\n".join([*lines, f"{'':<{label_width}}  {legend}"])


def bar_width(strips: Sequence[Strip], columns: int) -> int:
    """What labels and times leave of a terminal's columns for the longest strip."""
    labels = max((len(strip.label) for strip in strips), default=0)
    times = max((len(time_text(strip.end_s)) for strip in strips), default=0)
    return min(max(columns - labels - times - _BLANKS, _LEAST_BAR), _MOST_BAR)


def as_svg(strips: Sequence[Strip], title: str) -> str:
    """A picture of its own: no fonts, no scripts, nothing from elsewhere."""
    whole = max((strip.end_s for strip in strips), default=0.0) or 1.0
    width = _LABEL_PX + _BAR_PX + _VALUE_PX
    height = _TOP_PX + _ROW_PX * len(strips) + 10
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}"'
        f' role="img" font-family="sans-serif" font-size="12" fill="#6e7781">',
        f"<title>{escape(title)}</title>",
        f'<text x="8" y="18" font-size="14" font-weight="bold">{escape(title)}</text>',
        *_legend(_kinds(strips)),
    ]
    for i, strip in enumerate(strips):
        parts += _strip(strip, _TOP_PX + i * _ROW_PX, whole)
    return "\n".join([*parts, "</svg>", ""])


def _kinds(strips: Sequence[Strip]) -> list[str]:
    used = {span.kind for strip in strips for span in strip.spans if span.length_s}
    return [kind for kind in KINDS if kind in used]


def _legend(kinds: Sequence[str]) -> list[str]:
    parts = []
    for i, kind in enumerate(kinds):
        x = _LABEL_PX + i * 130
        parts.append(f'<rect x="{x}" y="30" width="12" height="12" fill="{KINDS[kind][1]}"/>')
        parts.append(f'<text x="{x + 17}" y="40">{kind}</text>')
    return parts


def _strip(strip: Strip, y: int, whole: float) -> list[str]:
    parts = [
        f'<text x="{_LABEL_PX - 8}" y="{y + 14}" text-anchor="end">{escape(strip.label)}</text>'
    ]
    for span in strip.spans:
        x = _LABEL_PX + span.start_s / whole * _BAR_PX
        length = span.length_s / whole * _BAR_PX
        if length >= 0.05:
            parts.append(
                f'<rect x="{x:.1f}" y="{y}" width="{length:.1f}" height="{_ROW_PX - 6}"'
                f' fill="{KINDS[span.kind][1]}"><title>{span.kind},'
                f" {time_text(span.length_s)}</title></rect>"
            )
    end = _LABEL_PX + strip.end_s / whole * _BAR_PX
    parts.append(f'<text x="{end + 6:.1f}" y="{y + 14}">{time_text(strip.end_s)}</text>')
    return parts
