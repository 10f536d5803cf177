"""What was measured, as figures: curves or bars, shares, and every number in a table.

Classes in the markup are those of page.py's style and of palette.rules().
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from braid import noise
from braid.report import chart, palette
from braid.report.runs import Curve, Point, Run, Share
from braid.sizes import format_size
from braid.topo.document import Document
from braid.topo.show import html
from braid.topo.show.markup import clean
from braid.topo.tables import model_known

_ROOMY = 0.25
"""Of a bar: room for a link's name and its part."""
_FIRST = ("braid", "nccl", "gloo")  # colours stay theirs from page to page
_WIRE_NOTE = (
    '<p class="fix">Dotted, or after "on the wire": what the links carried of NCCL\'s all-reduce at'
    " the least. Where NVSwitch adds (NVLS), bus bandwidth may pass a link's rate.</p>"
)


@dataclass(frozen=True)
class Style:
    """How a contestant looks."""

    classes: str
    """CSS: its colour, and "graph" for dashes."""
    mark: int


Styles = dict[tuple[str, str], Style]
"""By contestant and mode."""


@dataclass(frozen=True)
class Group:
    """Runs of one title, drawn in the same charts."""

    title: str
    runs: list[Run]

    @property
    def curves(self) -> list[Curve]:
        """Of all runs; one contestant's of several records are separate lines, named by them."""
        several = len(self.runs) > 1
        return [
            replace(curve, record=run.path if several else "")
            for run in self.runs
            for curve in run.curves
        ]

    @property
    def shares(self) -> list[Share]:
        """Of all runs."""
        return [share for run in self.runs for share in run.shares]


def groups(runs: Sequence[Run]) -> list[Group]:
    """Runs by title, in order."""
    found: dict[str, Group] = {}
    for run in runs:
        found.setdefault(run.title, Group(run.title, [])).runs.append(run)
    return list(found.values())


def figures(group: Group, whole: Document) -> Iterator[str]:
    """All figures of a group."""
    styles = _styles(group.curves)
    yield _key(styles, _drawn(group.curves))
    if any(_on_wire(curve) for curve in group.curves):
        yield _WIRE_NOTE
    if any(len(curve.points) > 1 for curve in group.curves):
        yield from _charts(group, styles, _theory(group, whole))
    else:
        yield from _bars(group, styles)
    yield from _share_bars(group.shares)
    yield from _noise(group)
    yield from _numbers(group)


def _styles(curves: Sequence[Curve]) -> Styles:
    """A colour for each contestant, dashes for captured calls."""
    who = list(dict.fromkeys(curve.who for curve in curves))
    who.sort(key=lambda name: _FIRST.index(name) if name in _FIRST else len(_FIRST))
    found = {(c.who, c.mode): who.index(c.who) for c in curves}
    return {
        key: Style(f"{palette.colour(place)}{' graph' if key[1] else ''}", palette.mark_at(place))
        for key, place in sorted(found.items(), key=lambda item: (item[1], item[0][1]))
    }


def _label(who: str, mode: str) -> str:
    return f"{who}, in a graph" if mode else who


def _drawn(curves: Sequence[Curve]) -> list[Curve]:
    """Those with a course; a single size beside curves is a stray dot, and stays in the table."""
    several = [curve for curve in curves if len(curve.points) > 1]
    return several or list(curves)


def _key(styles: Styles, drawn: Sequence[Curve]) -> str:
    there = {(curve.who, curve.mode) for curve in drawn}
    items = (
        '<li><svg viewBox="0 0 32 12" aria-hidden="true">'
        f'<path class="curve {style.classes}" d="M0 6H32"/>'
        f"{palette.mark(style.mark, 16, 6, style.classes, '')}</svg>{clean(_label(*key))}</li>"
        for key, style in styles.items()
        if key in there
    )
    return f'<ul class="key">{"".join(items)}</ul>'


def _charts(group: Group, styles: Styles, levels: Sequence[chart.Level]) -> Iterator[str]:
    yield '<div class="charts">'
    drawn = _drawn(group.curves)
    for op in dict.fromkeys(curve.op for curve in drawn):
        own = [curve for curve in drawn if curve.op == op]
        yield _figure(op, "bus bandwidth, GB/s", own, styles, levels, is_time=False)
        yield _figure(op, "time, us", own, styles, [], is_time=True)
    yield "</div>"


def _bars(group: Group, styles: Styles) -> Iterator[str]:
    """One size has no curve: a bar for each contestant."""
    points = [(curve, point) for curve in group.curves for point in curve.points]
    most = max((point.gbps for _, point in points), default=1.0)
    yield '<h3>Bus bandwidth, GB/s</h3><div class="wide"><table>'
    for curve, point in sorted(points, key=lambda pair: (pair[0].op, pair[0].who)):
        style = styles[curve.who, curve.mode]
        width = f"width:{point.gbps / most:.1%}"
        wire = f", on the wire {clean(_wire_text(point))}" if point.is_least else ""
        bar = f'<span class="{style.classes}" style="{width}">{point.gbps:.3g}{wire}</span>'
        yield (
            f"<tr><td>{clean(curve.op)}</td><td>{format_size(point.nbytes)}</td>"
            f"<td>{clean(_label(curve.who, curve.mode))}</td>"
            f'<td style="width:100%"><div class="share">{bar}</div></td></tr>'
        )
    yield "</table></div>"


def _theory(group: Group, whole: Document) -> list[chart.Level]:
    """What the GPUs' links carry: of this machine where it has them, else by the model's name."""
    gpu = group.runs[0].gpu
    if not gpu:
        return []
    own = [x for x in whole.derived.links if x.a == "GPU0" and x.kind in ("nvlink", "xgmi")]
    if own and all(x.theoretical_gbps for x in own):
        total = sum(x.theoretical_gbps or 0 for x in own)
        return [chart.Level(f"{own[0].name}, {own[0].basis}: {total:g}", total)]
    spec = model_known(gpu)
    if spec is None:
        return []
    total = spec.gbps_each * spec.links
    return [chart.Level(f"{spec.name}, specified: {total:g}", total)]


def _figure(
    op: str,
    what: str,
    curves: Sequence[Curve],
    styles: Styles,
    levels: Sequence[chart.Level],
    is_time: bool,
) -> str:
    lines = [
        chart.Line(
            _label(curve.who, curve.mode),
            styles[curve.who, curve.mode].classes,
            [(p.nbytes, p.time_us if is_time else p.gbps) for p in curve.points],
            styles[curve.who, curve.mode].mark,
            curve.record,
        )
        for curve in curves
    ]
    if not is_time:
        lines += [_wire_line(c, styles[c.who, c.mode]) for c in curves if _on_wire(c)]
    title = f"{op.replace('_', '-')}: {what}"
    picture = chart.draw(title, lines, levels, log=is_time)
    return f"<figure><figcaption>{clean(title)}</figcaption>{picture}</figure>"


def _on_wire(curve: Curve) -> bool:
    """Whether NVSwitch may have added: bus bandwidth then is not what the links carried."""
    return any(point.is_least for point in curve.points)


def _wire_text(point: Point) -> str:
    if point.wire_gbps is None:
        return "-"
    return f"{'>=' if point.is_least else ''}{point.wire_gbps:.4g}"


def _wire_line(curve: Curve, style: Style) -> chart.Line:
    points = [(p.nbytes, p.gbps if p.wire_gbps is None else p.wire_gbps) for p in curve.points]
    name = f"{_label(curve.who, curve.mode)}, on the wire at the least"
    return chart.Line(name, f"{style.classes} onwire", list(points), style.mark, curve.record)


def _share_bars(shares: Sequence[Share]) -> Iterator[str]:
    """A bar for each message that several links carried; the others in a sentence."""
    if not shares:
        return
    links = list(dict.fromkeys(link for share in shares for link in share.parts))
    parted = [share for share in shares if sum(part > 0 for part in share.parts.values()) > 1]
    yield "<h3>Share of each message by link</h3>"
    alone = len(shares) - len(parted)
    if alone:
        rest = f"{alone} of {len(shares)} messages" if parted else f"All {alone} messages"
        names = _alone(shares)
        yield f'<p class="fix">{rest} went over one link alone: {clean(names)}.</p>'
    if not parted:
        return
    yield '<div class="wide"><table>'
    for share in sorted(parted, key=lambda share: (share.op, share.nbytes)):
        spans = "".join(
            f'<span class="{palette.colour(links.index(link))}" style="width:{part:.1%}"'
            f' title="{clean(link)} {part:.1%}">{_inside(link, part)}</span>'
            for link, part in share.parts.items()
            if part > 0
        )
        yield (
            f"<tr><td>{clean(share.op)}</td><td>{format_size(share.nbytes)}</td>"
            f'<td style="width:100%"><div class="share">{spans}</div>'
            f"{_below(share.parts)}</td></tr>"
        )
    yield "</table></div>"


def _inside(link: str, part: float) -> str:
    """Words that a part of a bar has room for, also on a phone."""
    return f"{clean(link)} {part:.0%}" if part >= _ROOMY else ""


def _below(parts: dict[str, float]) -> str:
    """All of them in words where a part is too small for its own."""
    there = {link: part for link, part in parts.items() if part > 0}
    if min(there.values()) >= _ROOMY:
        return ""
    said = ", ".join(f"{link} {part:.1%}" for link, part in there.items())
    return f'<div class="fix">{clean(said)}</div>'


def _alone(shares: Sequence[Share]) -> str:
    """Links that carried whole messages."""
    carried = [[link for link, part in share.parts.items() if part > 0] for share in shares]
    return ", ".join(dict.fromkeys(links[0] for links in carried if len(links) == 1))


def _noise(group: Group) -> Iterator[str]:
    """How many points vary too much, said beside the pictures: their marks are in the table."""
    points = [point for curve in group.curves for point in curve.points]
    noisy = sum(bool(point.noisy) for point in points)
    if noisy:
        words = (
            f"{noisy} of {len(points)} times are {noise.LEGEND.removeprefix(noise.MARK).strip()}"
        )
        yield f'<p class="fix">{clean(words)}; {noise.MARK} in the table.</p>'


def _numbers(group: Group) -> Iterator[str]:
    """Every point as a number, for those who cannot or will not look at curves."""
    yield "<details><summary>Numbers</summary>"
    yield '<div class="wide"><table><thead>'
    has_wire = any(p.wire_gbps is not None for curve in group.curves for p in curve.points)
    heads = ["operation", "who", "bytes", "time us", "GB/s", *(["wire"] if has_wire else [])]
    yield html.table_row(heads, "th", range(2, len(heads)))
    yield "</thead><tbody>"
    for curve in sorted(group.curves, key=lambda curve: curve.op):
        for point in curve.points:
            numbers = [
                format_size(point.nbytes),
                f"{point.time_us:,.1f}{point.noisy}",
                f"{point.gbps:.4g}",
            ]
            cells = [curve.op, _label(curve.who, curve.mode), *numbers]
            if has_wire:
                cells.append(_wire_text(point))
            yield html.table_row(cells, "td", range(2, len(cells)))
    yield "</tbody></table></div></details>"
