"""Links between GPUs in the picture: a bar for switches or a full mesh, arcs for anything else."""

from collections.abc import Iterator, Sequence

from braid.topo.facts import SWITCH
from braid.topo.rates import Rate
from braid.topo.show.layout import GAP, PAD, Chip, Layout
from braid.topo.show.markup import LETTER, clean, hover

HEIGHT = 72
"""What the links need below the NUMA nodes."""
_BAR = 26
_DROP = HEIGHT - _BAR  # from the GPUs to the bar
_WIDEST = 10.0
_GBPS_PER_PIXEL = 75.0


def draw(rates: Sequence[Rate], plan: Layout) -> Iterator[str]:
    """Elements below the NUMA nodes; none where no GPU has a link."""
    bundles = [rate for rate in rates if rate.kind in ("nvlink", "xgmi")]
    switched = [bundle for bundle in bundles if bundle.b == SWITCH]
    direct = [bundle for bundle in bundles if bundle.b != SWITCH]
    if switched:
        yield from _bar(SWITCH, _by_gpu(switched), plan)
    elif _is_even_mesh(direct, len(plan.gpus)):
        yield from _bar("every GPU to every other", _by_gpu(direct), plan)
    else:
        yield from _arcs(direct, plan)


def _by_gpu(bundles: Sequence[Rate]) -> dict[str, list[Rate]]:
    own: dict[str, list[Rate]] = {}
    for bundle in bundles:
        own.setdefault(bundle.a, []).append(bundle)
    return own


def _is_even_mesh(direct: Sequence[Rate], num_gpus: int) -> bool:
    pairs = {(bundle.a, bundle.b) for bundle in direct}
    kinds = {(bundle.count, bundle.theoretical_gbps) for bundle in direct}
    return num_gpus > 2 and len(kinds) == 1 and len(pairs) == num_gpus * (num_gpus - 1)


def _bar(label: str, own: dict[str, list[Rate]], plan: Layout) -> Iterator[str]:
    chips = [plan.gpus[name] for name in own]
    y = plan.bottom + _DROP
    for chip, bundles in zip(chips, own.values(), strict=True):
        yield _drop(chip, y, bundles)
    first = next(iter(own.values()))
    count = sum(bundle.count for bundle in first)
    text = f"{label}: {first[0].name}, {count} link{'s' * (count != 1)} a GPU"
    left = min(chip.x for chip in chips)
    right = max(*(chip.x + chip.width for chip in chips), left + len(text) * LETTER + 2 * PAD)
    yield (
        f'<rect class="bar" x="{left:g}" y="{y:g}" width="{right - left:g}"'
        f' height="{_BAR}" rx="4"/>'
    )
    middle = (left + right) / 2
    yield f'<text class="m" x="{middle:g}" y="{y + 17:g}">{clean(text)}</text>'


def _drop(chip: Chip, y: float, bundles: Sequence[Rate]) -> str:
    """A line from a GPU to the bar, with its rate beside it."""
    total = sum(bundle.theoretical_gbps or 0 for bundle in bundles)
    said = f"{chip.name}: {sum(bundle.count for bundle in bundles)} x {bundles[0].name}"
    said += _rate(bundles[0]) if len(bundles) == 1 else f", {total:g} GB/s together"
    measured = [bundle.measured_gbps for bundle in bundles if bundle.measured_gbps]
    label = f"{total:g}" if total else ""
    if total and len(measured) == len(bundles):
        label = f"{sum(measured):.0f} of {total:g}"
    path = f"M{chip.middle:g} {chip.y + chip.height:g}V{y:g}"
    return (
        _line(path, total, bundles[0], said)
        + f'<text class="s" x="{chip.middle + GAP + 3:g}" y="{y - GAP:g}">{label}</text>'
    )


def _arcs(direct: Sequence[Rate], plan: Layout) -> Iterator[str]:
    """One arc per pair; each is told twice."""
    order = list(plan.gpus)
    for bundle in direct:
        if order.index(bundle.a) < order.index(bundle.b):
            a, b = plan.gpus[bundle.a], plan.gpus[bundle.b]
            y = a.y + a.height
            low = y + PAD + min(HEIGHT, 18 + (b.middle - a.middle) / 8)
            ends = f"{a.middle:g} {low:g} {b.middle:g} {low:g} {b.middle:g} {y:g}"
            path = f"M{a.middle:g} {y:g}C{ends}"
            said = f"{bundle.a} to {bundle.b}: {bundle.count} x {bundle.name}{_rate(bundle)}"
            yield _line(path, bundle.theoretical_gbps or 0, bundle, said)


def _line(path: str, gbps: float, bundle: Rate, said: str) -> str:
    width = min(1 + gbps / _GBPS_PER_PIXEL, _WIDEST)
    colour = _colour(bundle)
    return f'<path class="line{colour}" stroke-width="{width:g}" d="{path}">{hover(said)}</path>'


def _rate(bundle: Rate) -> str:
    if bundle.theoretical_gbps is None:
        return ""
    measured = f", measured {bundle.measured_gbps:g}" if bundle.measured_gbps else ""
    return f", {bundle.theoretical_gbps:g} GB/s {bundle.basis}{measured}"


def _colour(bundle: Rate) -> str:
    if not bundle.measured_gbps or not bundle.theoretical_gbps:
        return ""
    part = bundle.measured_gbps / bundle.theoretical_gbps
    return " good" if part >= 0.8 else " fair" if part >= 0.6 else " poor"
