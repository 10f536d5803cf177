"""When computation and communication of one step happen (F16), to look at."""

from braid.plan.basis import Basis, Quantity
from braid.plan.chart import Span, Strip
from braid.plan.formulas import overlap
from braid.plan.report import Report
from braid.plan.wrong import PlanError, a_count, above_zero, at_least


def strips(mode: str, compute_s: float, communication_s: float, layers: int) -> list[Strip]:
    """Both resources; their ends agree with overlap.step_s()."""
    pieces = layers if mode == "per-layer" else 1
    work, wire = compute_s / pieces, communication_s / pieces
    computing, sending, free_s = [], [], 0.0
    for i in range(pieces):
        computing.append(Span("computation", i * work, work))
        ready_s = 0.0 if mode == "perfect" else (i + 1) * work
        start_s = max(ready_s, free_s)
        sending.append(Span("communication", start_s, wire))
        free_s = start_s + wire
    compute = Strip("GPU", tuple(computing))
    if not communication_s:
        return [compute]
    network = Strip("links", tuple(sending))
    idle_s = network.end_s - compute.end_s
    if idle_s > 0:
        computing.append(Span("waiting", compute.end_s, idle_s))
    return [Strip("GPU", tuple(computing)), network]


def report(mode: str, compute_s: float, communication_s: float, layers: int) -> Report:
    """The step's length and what is exposed."""
    if mode not in overlap.MODES:
        raise PlanError(f"--mode: '{mode}' is no overlap; braid has {', '.join(overlap.MODES)}")
    above_zero("--compute-ms", compute_s * 1e3)
    at_least("--comm-ms", communication_s * 1e3, 0)
    a_count("--layers", layers, most=1000)
    answer = Report(
        "timeline",
        f"one step, overlap {mode}",
        {
            "mode": mode,
            "compute_s": compute_s,
            "communication_s": communication_s,
            "layers": layers,
        },
    )
    given = Quantity(compute_s, "s", Basis.EXACT, "as given")
    answer.add("compute_s", "computation", given)
    answer.exact("communication_s", "communication", communication_s, "s", "as given")
    for each in overlap.MODES:
        step = overlap.step_s(each, compute_s, communication_s, layers)
        answer.exact(f"step_{each.replace('-', '_')}_s", f"step, overlap {each}", step, "s")
    exposed = overlap.exposed_s(mode, compute_s, communication_s, layers)
    answer.exact("exposed_s", f"GPU waits, overlap {mode}", exposed, "s")
    return answer
