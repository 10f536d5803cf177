"""Data parallelism: DDP, the ZeRO stages, and FSDP as it is called layer by layer."""

from dataclasses import dataclass

from braid.plan.basis import Basis, Quantity
from braid.plan.formulas import collectives, overlap, rates, training
from braid.plan.hardware import Hardware, Path
from braid.plan.models import Model
from braid.plan.network import Network
from braid.plan.predict import Prediction, Request, predict
from braid.plan.report import Report, Row
from braid.plan.wrong import PlanError, a_part, above_zero, at_least

DDP_BUCKET_BYTES = 25 << 20
"""torch's default."""


@dataclass(frozen=True)
class Machines:
    """Where a job runs."""

    hardware: Hardware
    path: Path
    gpus: int
    """Per node."""
    nodes: int = 1
    network: Network | None = None

    def check(self) -> None:
        """PlanError for what no machine can do."""
        at_least("--gpus", self.gpus, 1)
        at_least("--nodes", self.nodes, 1)
        most = self.hardware.gpus_per_node
        if self.gpus > most:
            raise PlanError(f"--gpus {self.gpus}: {self.hardware.name} has {most} per node")

    @property
    def ranks(self) -> int:
        """All GPUs."""
        return self.gpus * self.nodes

    def border(self) -> Quantity:
        """The specified rate that a flat ring over all ranks has: what leaves a node, or a GPU."""
        if self.nodes > 1 and self.network:
            return self.network.per_node(self.gpus)
        return self.path.specified(self.gpus)

    def time(self, op: str, nbytes: float) -> Prediction:
        """One call over all ranks."""
        return predict(Request(op, nbytes, self.gpus, self.nodes), self.path, self.network)

    def words(self) -> str:
        """For titles."""
        nodes = f"{self.nodes} x " if self.nodes > 1 else ""
        return f"{nodes}{self.gpus} x {self.hardware.title}"


@dataclass(frozen=True)
class Work:
    """The computation of one step, from the model's size or as measured."""

    parameters: float
    sequence: int = 0
    batch: int = 0
    """Sequences of one step, all GPUs together."""
    recompute: bool = False
    mfu: float = 0.5
    compute_s: float = 0.0
    """As given; 0: from the rest."""

    def tflop_per_gpu(self, ranks: int) -> float:
        """F9."""
        passes = (
            training.FORWARD_BACKWARD_RECOMPUTE if self.recompute else training.FORWARD_BACKWARD
        )
        return training.tflop_per_gpu(self.parameters, self.sequence, self.batch, ranks, passes)

    def seconds(self, hardware: Hardware, ranks: int) -> Quantity | None:
        """F10; None when nothing was said about the work."""
        for option, value in (
            ("--compute-ms", self.compute_s),
            ("--seq", self.sequence),
            ("--batch", self.batch),
        ):
            at_least(option, value, 0)
        if self.compute_s:
            return Quantity(self.compute_s, "s", Basis.MEASURED, "as given")
        if not self.sequence or not self.batch:
            return None
        a_part("--mfu", self.mfu)
        peak = hardware.peak()
        value = training.compute_s(self.tflop_per_gpu(ranks), peak.value, self.mfu)
        return Quantity(
            value, "s", Basis.ASSUMED, f"{self.mfu:.0%} of {peak.value:g} TFLOP/s: {peak.origin}"
        )


def ddp(
    machines: Machines,
    work: Work,
    gradient_bytes: float = training.GRADIENT_BYTES,
    bucket_bytes: int = DDP_BUCKET_BYTES,
    layers: int = 1,
) -> Report:
    """One all-reduce of all gradients per step, in buckets, beside the backward pass."""
    machines.check()
    above_zero("parameters", work.parameters)
    above_zero("--bucket", bucket_bytes)
    above_zero("--gradient-bytes", gradient_bytes)
    at_least("--layers", layers, 1)
    ranks, rate = machines.ranks, machines.border()
    answer = Report(
        "ddp",
        f"DDP, {work.parameters / 1e9:.4g} B parameters on {machines.words()}",
        {**_inputs(machines, work), "gradient_bytes": gradient_bytes, "bucket_bytes": bucket_bytes},
    )
    gradients = work.parameters * gradient_bytes
    answer.exact("gradients_bytes", "gradients", gradients, "B")
    rough = training.ddp_rough_bytes(work.parameters, gradient_bytes)
    answer.exact("wire_rough_bytes", "on the wire, rule of thumb", rough, "B", "2 x gradients")
    wire = training.ddp_bytes(work.parameters, ranks, gradient_bytes)
    answer.exact("wire_bytes", "on the wire per GPU and direction", wire, "B", "x 2 (n-1)/n")
    if rate.value:
        rough_s = rates.seconds(rough, rate.value)
        answer.derived(
            "rough_s", "rule of thumb at the specified rate", rough_s, "s", [rate], rate.origin
        )
    _specified(answer, machines, [("all_reduce", gradients, 1)])
    one = machines.time("all_reduce", min(bucket_bytes, gradients))
    count = max(gradients / bucket_bytes, 1.0)
    total = one.time_us.value * count / 1e6
    communication = answer.add(
        "communication_s",
        f"{count:.4g} buckets of {one.time_us.value:.4g} us",
        Quantity(total, "s", one.time_us.basis, one.time_us.origin),
    )
    _beside(answer, machines, work, communication, wire, layers)
    return answer


def _inputs(machines: Machines, work: Work) -> dict[str, str | int | float | None]:
    return {
        "parameters": work.parameters,
        "hardware": machines.hardware.name,
        "path": machines.path.name,
        "gpus_per_node": machines.gpus,
        "nodes": machines.nodes,
        "sequence": work.sequence,
        "batch": work.batch,
        "mfu": work.mfu,
    }


def _specified(answer: Report, machines: Machines, calls: list[tuple[str, float, int]]) -> None:
    """The least time that the specified rates allow."""
    least = [machines.time(op, nbytes).least_us for op, nbytes, _ in calls]
    total = sum(each.value * count for each, (_, _, count) in zip(least, calls, strict=True)) / 1e6
    answer.derived(
        "least_s", "communication at the specified rate", total, "s", least, least[0].origin
    )


def _beside(
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


def zero(machines: Machines, work: Work, element_bytes: float = 2) -> Report:
    """Volumes of the ZeRO stages side by side. Stage 0 is DDP."""
    machines.check()
    above_zero("parameters", work.parameters)
    above_zero("--element-bytes", element_bytes)
    answer = Report(
        "zero",
        f"ZeRO, {work.parameters / 1e9:.4g} B parameters on {machines.words()}",
        {**_inputs(machines, work), "element_bytes": element_bytes},
    )
    rate, compute = machines.border(), work.seconds(machines.hardware, machines.ranks)
    if compute:
        answer.add("compute_s", "computation per step", compute)
    weights = training.weight_bytes(work.parameters, element_bytes)
    for stage in training.ZERO_MULTIPLES:
        answer.rows.append(_stage(machines, stage, work.parameters, element_bytes, rate, compute))
    answer.exact("weights_bytes", "weights", weights, "B")
    answer.add("rate_gbps", "specified rate of a flat ring", rate)
    answer.notes.append("volumes are for many ranks; for n of them multiply by (n-1)/n")
    return answer


def _stage(
    machines: Machines,
    stage: int,
    parameters: float,
    element_bytes: float,
    rate: Quantity,
    compute: Quantity | None,
) -> Row:
    volume = training.zero_bytes(stage, parameters, element_bytes)
    cells = {"volume": Quantity(volume, "B", Basis.EXACT, "multiple of the weights")}
    if rate.value:
        least = training.zero_s(stage, parameters, element_bytes, rate.value)
        cells["at specified rate"] = Quantity(least, "s", rate.basis, rate.origin)
    gathers = training.ZERO_MULTIPLES[stage] - 1
    weights = training.weight_bytes(parameters, element_bytes)
    gather = machines.time("all_gather", weights).time_us
    scatter = machines.time("reduce_scatter", weights).time_us
    total = (gathers * gather.value + scatter.value) / 1e6
    likely = Quantity(total, "s", Basis.ASSUMED, gather.origin)
    cells["likely"] = likely
    if compute:
        exposed = overlap.exposed_s("perfect", compute.value, total)
        cells["exposed"] = Quantity(exposed, "s", Basis.ASSUMED, "perfect overlap")
    note = "DDP" if stage == 0 else ""
    return Row(f"ZeRO-{stage}", cells, note)


def fsdp(machines: Machines, model: Model, work: Work, gradient_bytes: float = 2) -> Report:
    """Fully sharded: per layer two all-gathers of bf16 weights and one reduce-scatter."""
    machines.check()
    above_zero("--gradient-bytes", gradient_bytes)
    answer = Report(
        "fsdp",
        f"FSDP, {model.name} on {machines.words()}",
        {**_inputs(machines, work), "model": model.name, "gradient_bytes": gradient_bytes},
    )
    layer = model.layer_parameters * 2
    answer.exact("layer_bytes", "one layer's weights, bf16", layer, "B", "all-gather's size")
    answer.exact("shard_bytes", "one rank's part of it", layer / machines.ranks, "B")
    step = 2 * 2 * model.parameters + gradient_bytes * model.parameters
    answer.exact("step_bytes", "one step: 2 all-gathers, 1 reduce-scatter", step, "B")
    factor = collectives.bus_factor("all_gather", machines.ranks)
    answer.exact("wire_bytes", "on the wire per GPU and direction", step * factor, "B")
    calls = [
        ("all_gather", model.parameters * 2.0, 2),
        ("reduce_scatter", model.parameters * gradient_bytes, 1),
    ]
    _specified(answer, machines, calls)
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
    _beside(answer, machines, work, communication, step * factor, model.layers)
    return answer
