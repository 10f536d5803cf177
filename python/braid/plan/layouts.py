"""What if the same GPUs divided the model in another way? Best first, as a table and as bars.

A step is computation, the pipeline's bubble, and what no computation hides: all-reduces of tensor
parallelism, sends that fill the pipeline, gradients that outlast the backward pass.
"""

from dataclasses import dataclass

from braid.plan.basis import Basis, Quantity, weakest
from braid.plan.formulas import messages, overlap, training
from braid.plan.hardware import Hardware
from braid.plan.model import Model
from braid.plan.network import Network
from braid.plan.parallel import tensor
from braid.plan.predict import Request, predict
from braid.plan.ranking import Ranking, strip
from braid.plan.report import Report, Row
from braid.plan.wrong import PlanError, a_count, a_part, above_zero

_BACKWARD = 2 / 3
"""Of a step's computation, what runs while gradients leave."""
_ALL_REDUCES_PER_LAYER = 2 * tensor.PER_LAYER  # forward and backward
_WEIGHTS_BYTES = 6  # per parameter: bf16 weights, fp32 gradients
_OPTIMIZER_BYTES = training.BYTES_PER_PARAMETER - _WEIGHTS_BYTES  # shared by the replicas


@dataclass(frozen=True)
class Job:
    """A training step on a cluster of equal nodes."""

    model: Model
    hardware: Hardware
    gpus: int
    nodes: int
    network: Network | None
    sequence: int
    batch: int
    mfu: float = 0.5

    @property
    def ranks(self) -> int:
        """All GPUs."""
        return self.gpus * self.nodes

    def check(self) -> None:
        """PlanError for what no machine can do."""
        a_count("--gpus", self.gpus)
        a_count("--nodes", self.nodes, most=4096)
        for name, value in (("--seq", self.sequence), ("--batch", self.batch)):
            above_zero(name, value)
        a_part("--mfu", self.mfu)
        if self.gpus > self.hardware.gpus_per_node:
            most = self.hardware.gpus_per_node
            raise PlanError(
                f"--gpus {self.gpus}: {self.hardware.name} has {most} per node; --nodes has more"
            )


@dataclass(frozen=True)
class Layout:
    """How a model is divided: tensor parallelism inside, then replicas, then stages."""

    tp: int
    pp: int
    dp: int

    @property
    def name(self) -> str:
        """As people write it."""
        return f"TP{self.tp} PP{self.pp} DP{self.dp}"


def layouts(job: Job) -> list[Layout]:
    """Every division of the GPUs that the model and the batch allow."""
    found = []
    for tp in _divisors(job.ranks):
        for pp in _divisors(job.ranks // tp):
            dp = job.ranks // tp // pp
            fits_heads = tp <= job.model.heads and job.model.heads % tp == 0
            if fits_heads and pp <= job.model.layers and job.batch % dp == 0:
                found.append(Layout(tp, pp, dp))
    return found


def _divisors(number: int) -> list[int]:
    return [i for i in range(1, number + 1) if number % i == 0]


def by_layout(job: Job, top: int) -> Ranking:
    """Training steps of every layout; those that do not fit in memory come last."""
    job.check()
    found = layouts(job)
    if not found:
        raise PlanError(f"--batch {job.batch}: no layout of {job.ranks} GPUs divides it")
    answer = Report(
        "what-if",
        f"{job.model.name}, {job.ranks} x {job.hardware.title}, batch {job.batch}: which layout?",
        {
            "model": job.model.name,
            "hardware": job.hardware.name,
            "gpus_per_node": job.gpus,
            "nodes": job.nodes,
            "sequence": job.sequence,
            "batch": job.batch,
            "mfu": job.mfu,
            "by": "layout",
        },
    )
    rows = [_layout_row(job, layout) for layout in found]
    rows.sort(key=lambda row: (bool(row.note), row.cells["step"].value))
    answer.rows = rows[:top]
    answer.notes += [
        "microbatches of one sequence; gradients in bf16, hidden behind the backward pass",
        "memory without activations; optimizer states are shared by the replicas (ZeRO-1)",
    ]
    return Ranking(answer, [strip(row) for row in answer.rows])


def _layout_row(job: Job, layout: Layout) -> Row:
    microbatches = max(job.batch // layout.dp, 1)
    parameters = job.model.active_parameters
    work = training.tflop_per_gpu(parameters, job.sequence, job.batch, job.ranks)
    compute = training.compute_s(work, job.hardware.peak().value, job.mfu)
    bubble = overlap.bubble_part(layout.pp, microbatches)
    waiting = compute / (1 - bubble) - compute
    tp = _tensor_s(job, layout, microbatches)
    dp = _gradients_s(job, layout)
    exposed_dp = max(0.0, dp.value - _BACKWARD * compute)
    pp = _fill_s(job, layout)
    wire = tp.value + exposed_dp + pp.value
    basis = weakest([Basis.ASSUMED, tp.basis, dp.basis])
    need = _memory_bytes(job.model, layout)
    have = job.hardware.memory_gb * 1e9
    fits = not have or need <= have
    return Row(
        layout.name,
        {
            "step": Quantity(compute + waiting + wire, "s", basis, "computation at the given MFU"),
            "computation": Quantity(compute, "s", Basis.ASSUMED, f"{job.mfu:.0%} of the peak"),
            "waiting": Quantity(waiting, "s", Basis.ASSUMED, "pipeline bubble"),
            "communication": Quantity(wire, "s", basis, "not hidden"),
            "TP": tp,
            "DP": dp,
            "PP": pp,
            "memory": Quantity(need, "B", Basis.EXACT, "per GPU, without activations"),
        },
        "" if fits else f"does not fit: {job.hardware.memory_gb:g} GB per GPU",
    )


def _tensor_s(job: Job, layout: Layout, microbatches: int) -> Quantity:
    nbytes = messages.activation_bytes(job.sequence, job.model.hidden)
    one = _call(job, "all_reduce", nbytes, layout.tp, 1)
    layers = job.model.layers / layout.pp
    count = _ALL_REDUCES_PER_LAYER * layers * microbatches
    return Quantity(one.value * count / 1e6, "s", one.basis, one.origin)


def _gradients_s(job: Job, layout: Layout) -> Quantity:
    nbytes = 2 * job.model.parameters / layout.tp / layout.pp
    one = _call(job, "all_reduce", nbytes, layout.dp, layout.tp)
    return Quantity(one.value / 1e6, "s", one.basis, one.origin)


def _fill_s(job: Job, layout: Layout) -> Quantity:
    if layout.pp == 1:
        return Quantity(0.0, "s", Basis.EXACT, "one stage")
    nbytes = messages.activation_bytes(job.sequence, job.model.hidden) / layout.tp
    is_inside = layout.tp * layout.dp * 2 <= job.gpus
    if is_inside or job.network is None:
        one = predict(Request("send", nbytes, 2), job.hardware.paths[0]).time_us
    else:
        nic = _shared(job)
        one = predict(Request("send", nbytes, 1, 2), job.hardware.paths[0], nic).time_us
    return Quantity(2 * (layout.pp - 1) * one.value / 1e6, "s", one.basis, one.origin)


def _call(job: Job, op: str, nbytes: float, ranks: int, stride: int) -> Quantity:
    """One call of a group whose members are `stride` GPUs apart."""
    inside = max(1, min(ranks, job.gpus // stride))
    request = Request(op, nbytes, inside, -(-ranks // inside))
    return predict(request, job.hardware.paths[0], _shared(job)).time_us


def _shared(job: Job) -> Network | None:
    """All GPUs of a node use its NICs at once, each for its own group."""
    if job.network is None:
        return None
    each = job.network.per_gpu(job.gpus)
    return Network(each.value, "gpu", each.basis, job.network.origin)


def _memory_bytes(model: Model, layout: Layout) -> float:
    here = model.parameters / layout.tp / layout.pp
    return here * (_WEIGHTS_BYTES + _OPTIMIZER_BYTES / layout.dp)
