"""What if the same GPUs divided the model in another way? Best first, as a table and as bars.

A step is computation, the pipeline's bubble, and what no computation hides: all-reduces of tensor
parallelism, dispatch and combine of expert parallelism, sends that fill the pipeline, gradients
that outlast the backward pass.
"""

from dataclasses import dataclass, replace

from braid.plan.basis import Basis, Quantity, weakest
from braid.plan.formulas import messages, overlap, training
from braid.plan.hardware import Hardware
from braid.plan.model import Model
from braid.plan.network import Network
from braid.plan.predict import Request, predict
from braid.plan.ranking import Ranking, strip
from braid.plan.report import Report, Row
from braid.plan.wrong import PlanError, a_count, a_part, above_zero

_BACKWARD = 2 / 3
"""Of a step's computation, what runs while gradients leave."""
_DIRECTIONS = 2  # forward and backward
_EXCHANGES_PER_LAYER = 4  # dispatch and combine, forward and backward
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
    """How a model is divided: tensor parallelism inside, then replicas, then stages. Experts are
    divided over as many neighbours as `ep` says, of the same tensor-parallel group first; with 1,
    tensor parallelism cuts them as everything else.
    """

    tp: int
    pp: int
    dp: int
    ep: int = 1

    @property
    def name(self) -> str:
        """As people write it."""
        experts = f" EP{self.ep}" if self.ep > 1 else ""
        return f"TP{self.tp} PP{self.pp} DP{self.dp}{experts}"

    @property
    def expert_parts(self) -> int:
        """Of how many GPUs of a stage each has a part of the experts of its own."""
        return self.ep if self.ep > 1 else self.tp

    @property
    def expert_copies(self) -> int:
        """How many GPUs of a stage have the same part of the experts."""
        return self.tp * self.dp // self.expert_parts


def layouts(job: Job) -> list[Layout]:
    """Every division of the GPUs that the model and the batch allow."""
    found = []
    for tp in _divisors(job.ranks):
        for pp in _divisors(job.ranks // tp):
            dp = job.ranks // tp // pp
            fits_heads = tp <= job.model.heads and job.model.heads % tp == 0
            if fits_heads and pp <= job.model.layers and job.batch % dp == 0:
                found += [Layout(tp, pp, dp, ep) for ep in _expert_groups(job.model, tp * dp)]
    return found


def _expert_groups(model: Model, ranks: int) -> list[int]:
    """Over how many of a stage's GPUs the experts may be divided."""
    if not model.experts:
        return [1]
    return [ep for ep in _divisors(ranks) if model.experts.count % ep == 0]


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
    if all(row.note for row in rows):
        rows = _nothing_fits(job, rows, answer)
    answer.rows = rows[:top]
    if job.model.experts:
        answer.notes.append(
            "EP: whole experts on each GPU, even routing, activations in bf16 both ways"
        )
    answer.about(job.model)
    answer.notes += [
        "microbatches of one sequence; gradients in bf16, hidden behind the backward pass",
        "memory without activations; optimizer states are shared by the replicas (ZeRO-1)",
    ]
    return Ranking(answer, [strip(row) for row in answer.rows])


def _nothing_fits(job: Job, rows: list[Row], answer: Report) -> list[Row]:
    """The rows by memory, and one warning in place of a note on every row."""
    rows = sorted(rows, key=lambda row: row.cells["memory"].value)
    least_gb = rows[0].cells["memory"].value / 1e9
    answer.warnings.append(
        f"no layout fits in {job.hardware.memory_gb:g} GB per GPU: {rows[0].name} needs the least,"
        f" {least_gb:.4g} GB without activations; ordered by memory"
    )
    return [replace(row, note="") for row in rows]


def _layout_row(job: Job, layout: Layout) -> Row:
    microbatches = max(job.batch // layout.dp, 1)
    parameters = job.model.active_parameters
    work = training.tflop_per_gpu(parameters, job.sequence, job.batch, job.ranks)
    compute = training.compute_s(work, job.hardware.peak().value, job.mfu)
    bubble = overlap.bubble_part(layout.pp, microbatches)
    waiting = compute / (1 - bubble) - compute
    parts = {"TP": _tensor_s(job, layout, microbatches)}
    if job.model.experts:
        parts["EP"] = _experts_s(job, layout, microbatches)
    parts |= {"DP": _gradients_s(job, layout), "PP": _fill_s(job, layout)}
    exposed_dp = max(0.0, parts["DP"].value - _BACKWARD * compute)
    wire = sum(part.value for name, part in parts.items() if name != "DP") + exposed_dp
    basis = weakest([Basis.ASSUMED, *(part.basis for part in parts.values())])
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
            **parts,
            "memory": job.model.counted(need, "B", "per GPU, without activations"),
        },
        "" if fits else f"does not fit: {job.hardware.memory_gb:g} GB per GPU",
    )


def _tensor_s(job: Job, layout: Layout, microbatches: int) -> Quantity:
    nbytes = messages.activation_bytes(job.sequence, job.model.hidden)
    one = _call(job, "all_reduce", nbytes, layout.tp, 1)
    model = job.model
    saved = model.sparse_layers if layout.ep > 1 else 0
    calls = _DIRECTIONS * (model.all_reduces - saved) / layout.pp * microbatches
    return Quantity(one.value * calls / 1e6, "s", one.basis, one.origin)


def _experts_s(job: Job, layout: Layout, microbatches: int) -> Quantity:
    """In place of the MLP's all-reduce, tokens travel: each GPU of a tensor-parallel group sends
    its part of them.
    """
    if layout.ep == 1 or not job.model.experts:
        return Quantity(0.0, "s", Basis.EXACT, "experts are not divided")
    token = messages.activation_bytes(1, job.model.hidden)
    routed = messages.routed_bytes(job.sequence, job.model.experts.per_token, token) / layout.tp
    one = _call(job, "all_to_all", routed, layout.ep, 1)
    count = _EXCHANGES_PER_LAYER * job.model.sparse_layers / layout.pp * microbatches
    return Quantity(one.value * count / 1e6, "s", one.basis, one.origin)


def _gradients_s(job: Job, layout: Layout) -> Quantity:
    """Those of experts go to fewer GPUs than the others where experts are divided."""
    experts = job.model.all_experts_parameters
    dense = 2 * (job.model.parameters - experts) / layout.tp / layout.pp
    own = 2 * experts / layout.expert_parts / layout.pp
    if layout.expert_parts == layout.tp:
        calls = [(dense + own, layout.dp, layout.tp)]
    else:
        calls = [(dense, layout.dp, layout.tp), (own, layout.expert_copies, layout.ep)]
    each = [_call(job, "all_reduce", nbytes, ranks, stride) for nbytes, ranks, stride in calls]
    total = sum(one.value for one in each) / 1e6
    return Quantity(total, "s", weakest(one.basis for one in each), each[0].origin)


def _fill_s(job: Job, layout: Layout) -> Quantity:
    if layout.pp == 1:
        return Quantity(0.0, "s", Basis.EXACT, "one stage")
    nbytes = messages.activation_bytes(job.sequence, job.model.hidden) / layout.tp
    is_inside = layout.tp * layout.dp * 2 <= job.gpus
    if is_inside or job.network is None:
        path = job.hardware.path("auto", min(job.ranks, job.gpus))
        one = predict(Request("send", nbytes, 2), path).time_us
    else:
        nic = _shared(job)
        path = job.hardware.path("auto")
        one = predict(Request("send", nbytes, 1, 2), path, nic).time_us
    return Quantity(2 * (layout.pp - 1) * one.value / 1e6, "s", one.basis, one.origin)


def _call(job: Job, op: str, nbytes: float, ranks: int, stride: int) -> Quantity:
    """One call of a group whose members are `stride` GPUs apart: its way is that of all GPUs from
    its first to its last, as the neighbours of every one of them have such groups, too.
    """
    inside = max(1, min(ranks, job.gpus // stride))
    request = Request(op, nbytes, inside, -(-ranks // inside))
    path = job.hardware.path("auto", inside * stride if inside > 1 else 1, op)
    return predict(request, path, _shared(job)).time_us


def _shared(job: Job) -> Network | None:
    """All GPUs of a node use its NICs at once, each for its own group."""
    if job.network is None:
        return None
    each = job.network.per_gpu(job.gpus)
    return Network(each.value, "gpu", each.basis, job.network.origin)


def _memory_bytes(model: Model, layout: Layout) -> float:
    experts = model.all_experts_parameters
    dense = (model.parameters - experts) / layout.tp / layout.pp
    own = experts / layout.expert_parts / layout.pp
    dense_each = _WEIGHTS_BYTES + _OPTIMIZER_BYTES / layout.dp
    own_each = _WEIGHTS_BYTES + _OPTIMIZER_BYTES / layout.expert_copies
    return dense * dense_each + own * own_each
