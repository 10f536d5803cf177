"""What if the same work ran on other hardware? Best first, as a table and as bars."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from braid.plan import hardware
from braid.plan.basis import Quantity
from braid.plan.chart import Strip, stacked
from braid.plan.hardware import Hardware
from braid.plan.model import Model
from braid.plan.parallel import tensor
from braid.plan.report import Report, Row
from braid.plan.wrong import PlanError, a_count, a_part


@dataclass(frozen=True)
class Ranking:
    """A table, and the picture of it."""

    report: Report
    strips: list[Strip]


def by_hardware(
    model: Model, ranks: int, tokens: int, machines: Sequence[str | Hardware], mfu: float
) -> Ranking:
    """One tensor-parallel pass on every machine that has enough GPUs in a node; machines are names
    of the table (all of it, if none is given), or were read from records.
    """
    a_count("--tp", ranks)
    a_part("--mfu", mfu)
    nodes = [
        hardware.find(one) if isinstance(one, str) else one for one in machines or hardware.names()
    ]
    fitting = [node for node in nodes if node.gpus_per_node >= ranks]
    if not fitting:
        raise PlanError(f"--tp {ranks}: none of these machines has as many GPUs in a node")
    answer = Report(
        "what-if",
        f"{model.name}, TP {ranks}, {tokens} tokens: which hardware?",
        {"model": model.name, "tp": ranks, "tokens": tokens, "by": "hardware", "mfu": mfu},
    )
    few = [node for node in nodes if node.gpus_per_node < ranks]
    if machines and few:
        left_out = ", ".join(f"{node.name} ({node.gpus_per_node} GPUs)" for node in few)
        answer.notes.append(f"fewer than {ranks} GPUs in a node, left out: {left_out}")
    rows = sorted(
        (_pass(model, ranks, tokens, node, mfu) for node in fitting),
        key=lambda row: row.cells["pass"].value,
    )
    answer.warnings += tensor.undivided(model, ranks)
    answer.warnings += [f"{node.name}: {each}" for node in fitting for each in node.apart(ranks)]
    answer.about(model)
    best = rows[0].cells["pass"].value
    for row in rows:
        slower = Quantity(row.cells["pass"].value / best, "x", row.cells["pass"].basis, "")
        answer.rows.append(replace(row, cells={**row.cells, "by the best": slower}))
    return Ranking(answer, [strip(row) for row in rows])


def _pass(model: Model, ranks: int, tokens: int, node: Hardware, mfu: float) -> Row:
    asked = tensor.Question(model, ranks, tokens, node, mfu=mfu)
    path = node.path("auto", ranks)
    found = tensor.report(asked, [path], [])
    key = path.name.replace("-", "_")
    numbers = {line.name: line.quantity for line in found.lines}
    wire, compute = numbers[f"{key}.communication_s"], numbers["compute_s"]
    return Row(
        node.name,
        {
            "pass": numbers[f"{key}.prefill_s"],
            "computation": compute,
            "communication": wire,
            "comm. part": numbers[f"{key}.communication_part"],
        },
        numbers[f"{key}.all_reduce_us"].origin,
    )


def strip(row: Row) -> Strip:
    """A row's parts, one after the other."""
    kinds = ("computation", "waiting", "communication")
    return stacked(row.name, [(k, row.cells[k].value) for k in kinds if k in row.cells])
