"""What a report says, in words, before it shows anything: the machine and its warnings, who was
faster and by how much, what a plan came to.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from braid.plan.amounts import amount
from braid.ratio import Interval, interval, interval_words, ratio_words, verdict
from braid.record.probe import BAD
from braid.report.figures import Group
from braid.report.plan import Plan
from braid.report.probes import Probed
from braid.report.runs import Point, Run
from braid.sizes import format_size
from braid.topo.document import Document
from braid.topo.show import words
from braid.topo.show.markup import clean

_OURS = "braid"
_ORDER = ("faster", "equal", "slower", "unclear")
_OWN = ("braid ", "fixed shares")
"""What the names of our own variants begin with: no rivals."""


@dataclass(frozen=True)
class Case:
    """A rival's time by braid's, in one case of one record."""

    op: str
    nbytes: int
    mode: str
    ratio: float
    span: Interval | None
    """Where it lies with 95 % confidence."""

    @property
    def name(self) -> str:
        """ "all-reduce 256 MiB"."""
        graph = " in a graph" if self.mode else ""
        return f"{self.op.replace('_', '-')} {format_size(self.nbytes)}{graph}"


def section(
    whole: Document, found: Sequence[Group], probed: Sequence[Probed], plans: Sequence[Plan]
) -> Iterator[str]:
    """A list of sentences."""
    yield '<section id="summary"><h2>In short</h2><ul>'
    yield from _machine(whole)
    for group in found:
        for rival in _rivals(group):
            yield f"<li>{clean(_beside(group, rival))}</li>"
    if probed:
        yield f"<li>{clean(_probes(probed))}</li>"
    if plans and (said := _plan(plans)):
        yield f"<li>{clean(said)}</li>"
    yield "</ul></section>"


def _machine(whole: Document) -> Iterator[str]:
    """What it is, and the first warning."""
    yield f"<li>{clean(words.gpus(whole.machine))}: {clean(_joined(whole))}</li>"
    warnings = [one for one in whole.derived.verdicts if one.level == "warning"]
    if not warnings:
        yield "<li>no warnings</li>"
        return
    more = f" and {len(warnings) - 1} more" if warnings[1:] else ""
    text = f"{clean(warnings[0].text)}{more}"
    yield f'<li class="warning"><b>warning</b> {text}: <a href="#machine">below</a></li>'


def _joined(whole: Document) -> str:
    own = [one for one in whole.derived.links if one.a == "GPU0" and one.kind in ("nvlink", "xgmi")]
    if not own:
        return "no links of their own between them" if whole.machine.gpus else "CPUs alone"
    total = sum(one.theoretical_gbps or 0 for one in own)
    rate = f", {total:g} GB/s {own[0].basis} from each GPU in one direction" if total else ""
    return f"{own[0].name}{rate}"


def _rivals(group: Group) -> list[str]:
    """NCCL and Gloo, or else whoever is beside braid."""
    names = list(dict.fromkeys(curve.who for curve in group.curves))
    known = [name for name in names if name in ("nccl", "gloo")]
    others = [name for name in names if name != _OURS and not name.startswith(_OWN)]
    return known or others[:1]


def cases(runs: Sequence[Run], rival: str) -> list[Case]:
    """Where both were measured in one record."""
    found = []
    for run in runs:
        curves = {(one.op, one.mode, one.who): one.points for one in run.curves}
        for (op, mode, who), ours in curves.items():
            theirs = {one.nbytes: one for one in curves.get((op, mode, rival), [])}
            if who == _OURS:
                both = [(one, theirs[one.nbytes]) for one in ours if one.nbytes in theirs]
                found += [_case(op, mode, *pair) for pair in both]
    return found


def _case(op: str, mode: str, ours: Point, theirs: Point) -> Case:
    span = interval(theirs.samples_us, ours.samples_us)
    return Case(op, ours.nbytes, mode, theirs.time_us / ours.time_us, span)


def _beside(group: Group, rival: str) -> str:
    found = cases(group.runs, rival)
    if not found:
        return f"{group.title}: braid and {rival} have no case in common"
    judged = [verdict(one.ratio, one.span) for one in found]
    counts = ", ".join(f"{judged.count(word)} {word}" for word in _ORDER if word in judged)
    least, most = (pick(found, key=lambda one: one.ratio) for pick in (min, max))
    said = f"{group.title}: braid against {rival} in {len(found)} cases: {counts}"
    if least is not most:
        said += f"; from {ratio_words(least.ratio)} ({least.name}) to {ratio_words(most.ratio)}"
        said += f" ({most.name})"
    largest = {one.op: one for one in sorted(found, key=lambda one: (not one.mode, one.nbytes))}
    named = ", ".join(
        f"{one.name} {ratio_words(one.ratio)} {interval_words(one.span)}".strip()
        for op in dict.fromkeys(one.op for one in found)
        if (one := largest[op])
    )
    return f"{said}. The largest: {named}"


def _probes(probed: Sequence[Probed]) -> str:
    series = [one for each in probed for one in each.record.series]
    bad = sum(one.verdict in BAD or bool(one.wrong_bytes) for one in series)
    what = f"{len(probed)} record{'s' if probed[1:] else ''} of pairs, links and sequences of calls"
    return f"{what}, {len(series)} cases: {f'{bad} WRONG OR FAILED' if bad else 'none was wrong'}"


def _plan(plans: Sequence[Plan]) -> str:
    """Of each library the communication of one pass."""
    said = []
    for plan in plans:
        line = next(
            (one for one in plan.answer.lines if one.name.endswith(".communication_s")), None
        )
        if line is not None:
            said.append(f"{amount(line.quantity)} {plan.title} ({line.quantity.basis.value})")
    title = plans[0].answer.title
    return f"{title}: communication takes {', '.join(said)}" if said else ""
