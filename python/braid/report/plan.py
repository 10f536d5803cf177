"""The plan for a model on the page's machine: a table for each library whose times were measured.

Numbers are those of `braid plan tp`; each says what it rests on.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from braid.plan import models, records, topology
from braid.plan.curve import Curve
from braid.plan.hardware import Hardware
from braid.plan.parallel import tensor
from braid.plan.report import Report
from braid.plan.show import amount
from braid.topo.document import Document, document, to_json
from braid.topo.show import html
from braid.topo.show.markup import clean

_WHO = ("braid", "nccl")
PROBE = "braid.probe/1"
"""Records of copies and of sequences of calls, which plan nothing."""


@dataclass(frozen=True)
class Asked:
    """A model, and how one pass of it is cut."""

    model: str
    tokens: int = 4096
    ranks: int = 0
    """GPUs that share every layer; 0: all of the machine, but no more than a record has."""
    mfu: float = 0.5
    peak_tflops: float = 0.0
    """Of one GPU, dense; 0: as the tables say."""


@dataclass(frozen=True)
class Plan:
    """An answer, and whose times it is made from."""

    title: str
    answer: Report


def plans(asked: Asked, whole: Document, files: Sequence[Path]) -> list[Plan]:
    """One for each library that the records have times of; from the links alone where there are
    none. InvalidArgument for a model or a machine that cannot be planned.
    """
    specified = document(whole.machine)  # what was measured comes in as curves
    bare = topology.machine(json.loads(to_json(specified)), whole.machine.name or "this machine")
    if asked.peak_tflops:
        bare = bare.with_peak(asked.peak_tflops)
    found = []
    for who in _WHO:
        curves = [curve for file in files for curve in _curves(file, who)]
        ranks = asked.ranks or max((c.ranks for c in curves), default=bare.gpus_per_node)
        if any(c.ranks == ranks and c.op == "all_reduce" for c in curves):
            title = f"with {who}'s measured times"
            found.append(_plan(title, asked, ranks, bare.with_curves(curves)))
    return found or [_plan("from the links", asked, asked.ranks or bare.gpus_per_node, bare)]


def _plan(title: str, asked: Asked, ranks: int, machine: Hardware) -> Plan:
    question = tensor.Question(
        models.find(asked.model), ranks, asked.tokens, machine, mfu=asked.mfu
    )
    return Plan(title, tensor.report(question, [machine.paths[0]], []))


def _curves(file: Path, who: str) -> list[Curve]:
    document = records.load(file)
    is_collectives = document["schema"] != PROBE
    return records.curves(document, who, file.name) if is_collectives else []


def section(found: Sequence[Plan]) -> Iterator[str]:
    """The section's markup."""
    yield f"<h2>Plan: {clean(found[0].answer.title)}</h2>"
    for plan in found:
        yield f'<h3>{clean(plan.title)}</h3><div class="wide"><table><thead>'
        yield html.table_row(["what", "value", "basis", "from"], "th", range(1, 2))
        yield "</thead><tbody>"
        for line in plan.answer.lines:
            number = line.quantity
            cells = [line.label, amount(number), number.basis.value, number.origin]
            yield html.table_row(cells, "td", range(1, 2))
        yield "</tbody></table></div>"
    for note in dict.fromkeys(note for plan in found for note in plan.answer.notes):
        yield f'<p class="fix">{clean(note)}</p>'
