"""What all reports about training steps have in common."""

from braid.plan.answer import Value
from braid.plan.basis import Quantity
from braid.plan.formulas import overlap
from braid.plan.parallel.machines import Machines, Work
from braid.plan.report import Report


def inputs(machines: Machines, work: Work) -> dict[str, Value]:
    """The question, for programs."""
    return {
        "parameters": work.parameters,
        "active_parameters": work.active or work.parameters,
        "hardware": machines.hardware.name,
        "path": machines.path.name,
        "gpus_per_node": machines.gpus,
        "nodes": machines.nodes,
        "algorithm": machines.algorithm,
        "sequence": work.sequence,
        "batch": work.batch,
        "mfu": work.mfu,
    }


def least(
    answer: Report, machines: Machines, work: Work, calls: list[tuple[str, float, int]]
) -> None:
    """The least time that the specified rates allow."""
    times = [machines.time(op, nbytes).least_us for op, nbytes, _ in calls]
    total = sum(each.value * count for each, (_, _, count) in zip(times, calls, strict=True)) / 1e6
    parts = [*times, work.count]
    answer.derived(
        "least_s", "communication at the specified rate", total, "s", parts, times[0].origin
    )


def beside(
    answer: Report,
    machines: Machines,
    work: Work,
    communication: Quantity,
    wire: float,
    layers: int,
) -> None:
    """The step with its computation: serial, layer by layer, perfect; who waits for whom."""
    compute = work.seconds(machines.hardware, machines.ranks)
    if compute is None:
        answer.notes.append("say --seq and --batch, or --compute-ms, to see what overlap hides")
        return
    answer.add("compute_s", "computation per step", compute)
    both = [compute, communication]
    for mode in overlap.MODES:
        value = overlap.step_s(mode, compute.value, communication.value, layers)
        name = mode.replace("-", "_")
        answer.derived(f"step_{name}_s", f"step, overlap {mode}", value, "s", both)
    exposed = overlap.exposed_s("perfect", compute.value, communication.value)
    answer.derived("exposed_s", "GPUs wait, at best", exposed, "s", both)
    needed = overlap.rate_to_hide_gbps(wire, compute.value)
    answer.derived("rate_to_hide_gbps", "rate that hides it all", needed, "GB/s", [compute])
    if overlap.is_bottleneck(communication.value, compute.value):
        answer.warnings.append("communication takes longer than computation: the links decide")
    if machines.nodes > 1:
        answer.notes.append(
            "the batch counts all GPUs: on more nodes the same batch leaves less work for each"
        )
