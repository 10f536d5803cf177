"""Data parallelism with shards: the ZeRO stages, and FSDP as it is called layer by layer."""

from braid.plan.basis import Basis, Quantity, weakest
from braid.plan.formulas import collectives, overlap, training
from braid.plan.model import Model
from braid.plan.parallel.machines import Machines, Work
from braid.plan.parallel.step import beside, inputs, least
from braid.plan.report import Report, Row
from braid.plan.wrong import above_zero


def zero(machines: Machines, work: Work, element_bytes: float = 2) -> Report:
    """Volumes of the ZeRO stages side by side. Stage 0 is DDP."""
    machines.check()
    work.check()
    above_zero("--element-bytes", element_bytes)
    answer = Report(
        "zero",
        f"ZeRO, {work.parameters / 1e9:.4g} B parameters on {machines.words()}",
        {**inputs(machines, work), "element_bytes": element_bytes},
    )
    answer.warnings += machines.hardware.apart(machines.gpus)
    rate, compute = machines.border(), work.seconds(machines.hardware, machines.ranks)
    if compute:
        answer.add("compute_s", "computation per step", compute)
    weights = training.weight_bytes(work.parameters, element_bytes)
    for stage in training.ZERO_MULTIPLES:
        answer.rows.append(_stage(machines, stage, work.count, element_bytes, rate, compute))
    answer.derived("weights_bytes", "weights", weights, "B", [work.count])
    answer.add("rate_gbps", "specified rate of a flat ring", rate)
    answer.notes.append("volumes are for many ranks; for n of them multiply by (n-1)/n")
    return answer


def _stage(
    machines: Machines,
    stage: int,
    parameters: Quantity,
    element_bytes: float,
    rate: Quantity,
    compute: Quantity | None,
) -> Row:
    volume = training.zero_bytes(stage, parameters.value, element_bytes)
    cells = {"volume": Quantity(volume, "B", parameters.basis, "multiple of the weights")}
    weights = training.weight_bytes(parameters.value, element_bytes)
    calls = [(machines.time(op, weights), count) for op, count in _calls(stage)]
    origin = calls[0][0].time_us.origin
    if rate.value:
        each = [found.least_us for found, _ in calls]
        at_least = sum(found.least_us.value * count for found, count in calls) / 1e6
        basis = weakest(one.basis for one in each)
        cells["at specified rate"] = Quantity(at_least, "s", basis, each[0].origin)
    total = sum(found.time_us.value * count for found, count in calls) / 1e6
    cells["likely"] = Quantity(total, "s", Basis.ASSUMED, origin)
    if compute:
        exposed = overlap.exposed_s("perfect", compute.value, total)
        cells["exposed"] = Quantity(exposed, "s", Basis.ASSUMED, "perfect overlap")
    note = "DDP" if stage == 0 else ""
    return Row(f"ZeRO-{stage}", cells, note)


def _calls(stage: int) -> list[tuple[str, int]]:
    """Operations of all weights or gradients, and how often a step has them."""
    if stage == 0:
        return [("all_reduce", 1)]  # as DDP, and an algorithm may move less than two halves do
    return [("all_gather", int(training.ZERO_MULTIPLES[stage]) - 1), ("reduce_scatter", 1)]


def fsdp(machines: Machines, model: Model, work: Work, gradient_bytes: float = 2) -> Report:
    """Fully sharded: per layer two all-gathers of bf16 weights and one reduce-scatter."""
    machines.check()
    work.check()
    above_zero("--gradient-bytes", gradient_bytes)
    answer = Report(
        "fsdp",
        f"FSDP, {model.name} on {machines.words()}",
        {**inputs(machines, work), "model": model.name, "gradient_bytes": gradient_bytes},
    )
    layer = model.layer_parameters * 2
    answer.about(model)
    answer.warnings += machines.hardware.apart(machines.gpus)
    whole = model.counted(layer, "B", "all-gather's size")
    answer.add("layer_bytes", "one layer's weights, bf16", whole)
    answer.derived("shard_bytes", "one rank's part of it", layer / machines.ranks, "B", [whole])
    step = 2 * 2 * model.parameters + gradient_bytes * model.parameters
    answer.derived("step_bytes", "one step: 2 all-gathers, 1 reduce-scatter", step, "B", [whole])
    factor = collectives.bus_factor("all_gather", machines.ranks)
    wire = step * factor
    answer.derived("wire_bytes", "on the wire per GPU and direction", wire, "B", [whole])
    calls = [
        ("all_gather", model.parameters * 2.0, 2),
        ("reduce_scatter", model.parameters * gradient_bytes, 1),
    ]
    least(answer, machines, work, calls)
    gather = answer.add(
        "layer_all_gather_us", "one layer: all-gather", machines.time("all_gather", layer).time_us
    )
    scatter = answer.add(
        "layer_reduce_scatter_us",
        "one layer: reduce-scatter",
        machines.time("reduce_scatter", model.layer_parameters * gradient_bytes).time_us,
    )
    parts = model.parameters / model.layer_parameters
    total = (2 * gather.value + scatter.value) * parts / 1e6
    communication = answer.derived(
        "communication_s",
        f"communication of a step, {parts:.4g} layers' worth",
        total,
        "s",
        [gather, scatter],
        "embeddings and dense layers count by their size",
    )
    beside(answer, machines, work, communication, wire, model.layers)
    return answer
