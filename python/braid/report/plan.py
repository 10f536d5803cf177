"""The plan for a model on the page's machine: a column for each library whose times were measured.

Numbers are those of `braid plan tp`; each says what it rests on.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from braid.plan import models, records, topology
from braid.plan.amounts import amount
from braid.plan.curve import Curve
from braid.plan.hardware import Hardware
from braid.plan.parallel import tensor
from braid.plan.report import Report
from braid.plan.wrong import PlanError
from braid.report import table
from braid.topo.document import Document, document, to_json
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
    if ranks > machine.gpus_per_node:
        raise PlanError(f"--tp {ranks}: this machine has {machine.gpus_per_node} GPUs")
    question = tensor.Question(
        models.find(asked.model), ranks, asked.tokens, machine, mfu=asked.mfu
    )
    return Plan(title, tensor.report(question, [machine.path("auto", ranks)], []))


def _curves(file: Path, who: str) -> list[Curve]:
    document = records.load(file)
    is_collectives = document["schema"] != PROBE
    return records.curves(document, who, file.name) if is_collectives else []


def section(found: Sequence[Plan]) -> Iterator[str]:
    """The section's markup: a row for each number, a column for each library."""
    yield f"<h2>Plan: {clean(found[0].answer.title)}</h2>"
    heads = ["what", *(plan.title for plan in found), "basis", "from"]
    rows = [_row(name, found) for name in _names(found)]
    yield from table.stacked(heads, rows, range(1, len(found) + 1))
    said = [f"Warning: {each}" for plan in found for each in plan.answer.warnings]
    said += [note for plan in found for note in plan.answer.notes]
    for note in dict.fromkeys(said):
        yield f'<p class="fix">{clean(note)}</p>'


def _names(found: Sequence[Plan]) -> list[str]:
    """Of all numbers, in the order of the plan that has most."""
    longest = sorted(found, key=lambda plan: -len(plan.answer.lines))
    return list(dict.fromkeys(line.name for plan in longest for line in plan.answer.lines))


def _row(name: str, found: Sequence[Plan]) -> list[str]:
    """Label, everybody's number, and what they rest on: said once where all agree."""
    lines = [
        next((line for line in plan.answer.lines if line.name == name), None) for plan in found
    ]
    there = [line for line in lines if line]
    basis = dict.fromkeys(line.quantity.basis.value for line in there)
    origin = dict.fromkeys(line.quantity.origin for line in there if line.quantity.origin)
    numbers = [amount(line.quantity) if line else "-" for line in lines]
    return [there[0].label, *numbers, " / ".join(basis), " / ".join(origin)]
