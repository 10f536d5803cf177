"""Tensor parallelism: two all-reduces of the activations per layer, in nobody's shadow.

The computation is either a measured step less its communication, or work at a part of the peak.
A step that was measured on one path then predicts the step on another, which is how the published
case is reproduced.
"""

from dataclasses import dataclass

from braid.plan import shipped
from braid.plan.basis import Basis, Quantity, weakest
from braid.plan.formulas import collectives, messages, training
from braid.plan.hardware import Hardware, Path
from braid.plan.model import Model
from braid.plan.network import Network
from braid.plan.predict import Prediction, Request, predict
from braid.plan.report import Report
from braid.plan.wrong import PlanError, a_count, a_part, at_least

PER_LAYER = 2
"""All-reduces: after attention, after the MLP."""


@dataclass(frozen=True)
class MeasuredStep:
    """One prefill whose time is known."""

    path: str
    tokens: int
    time_s: float
    origin: str


@dataclass(frozen=True)
class Question:
    """What is asked."""

    model: Model
    ranks: int
    tokens: int
    hardware: Hardware
    nodes: int = 1
    network: Network | None = None
    algorithm: str = "auto"
    element_bytes: int = 2
    mfu: float = 0.5

    def check(self) -> None:
        """PlanError for what no machine can do."""
        a_count("--tp", self.ranks)
        at_least("--tokens", self.tokens, 1)
        a_count("--nodes", self.nodes)
        a_part("--mfu", self.mfu)
        if self.ranks % self.nodes:
            raise PlanError(f"--tp {self.ranks} does not divide over {self.nodes} nodes")
        inside = self.ranks // self.nodes
        if inside > self.hardware.gpus_per_node:
            raise PlanError(
                f"--tp {self.ranks}: {self.hardware.name} has {self.hardware.gpus_per_node} GPUs"
                f" per node; say --nodes {-(-self.ranks // self.hardware.gpus_per_node)} or more"
            )


def all_reduce(question: Question, path: Path, tokens: int) -> Prediction:
    """One of them."""
    nbytes = messages.activation_bytes(tokens, question.model.hidden, question.element_bytes)
    request = Request("all_reduce", nbytes, question.ranks // question.nodes, question.nodes)
    return predict(request, path, question.network, question.algorithm)


def communication(question: Question, path: Path, tokens: int) -> Quantity:
    """All of them, one after the other."""
    one = all_reduce(question, path, tokens).time_us
    count = question.model.all_reduces
    return Quantity(one.value * count / 1e6, "s", one.basis, f"{count} x {one.value:.1f} us")


def published_steps(question: Question) -> list[MeasuredStep]:
    """Prefills that others measured of this model on this machine."""
    wanted = (question.model.name, question.ranks, question.hardware.name)
    return [
        MeasuredStep(row["path"], row["tokens"], row["time_s"], shipped.source(row["source"]))
        for row in shipped.table("measured")["steps"]
        if (row["model"], row["tp"], row["hardware"]) == wanted
    ]


def report(question: Question, paths: list[Path], steps: list[MeasuredStep]) -> Report:
    """Everything about one prefill."""
    question.check()
    model, count = question.model, question.model.all_reduces
    answer = Report(
        "tp",
        f"{model.name}, TP {question.ranks}, {question.tokens} tokens on {question.ranks} x"
        f" {question.hardware.title}",
        {
            "model": model.name,
            "tp": question.ranks,
            "tokens": question.tokens,
            "hardware": question.hardware.name,
            "nodes": question.nodes,
            "algorithm": question.algorithm,
        },
    )
    per_token = messages.activation_bytes(1, model.hidden, question.element_bytes)
    answer.exact("bytes_per_token", "activations per token", per_token, "B", "hidden x element")
    nbytes = per_token * question.tokens
    answer.exact("all_reduce_bytes", "one all-reduce", nbytes, "B", "tokens x hidden x element")
    each = f"{model.layers} layers x {PER_LAYER}"
    why = each if count == PER_LAYER * model.layers else f"of {model.layers} layers"
    answer.exact("all_reduces", "all-reduces", count, "", why)
    for path in paths:
        _add_path(answer, question, path)
    _add_prefill(answer, question, paths, steps)
    if model.sparse_layers:
        answer.notes.append(
            "with expert parallelism the MLP's all-reduce becomes dispatch and combine: see ep"
        )
    answer.warnings += undivided(model, question.ranks)
    answer.warnings += question.hardware.apart(question.ranks // question.nodes)
    answer.about(model)
    answer.notes.append("some engines add one all-reduce for the embedding, and gather the logits")
    return answer


def undivided(model: Model, ranks: int) -> list[str]:
    """A warning where the heads do not divide over the ranks."""
    if not model.heads % ranks:
        return []
    return [f"{model.heads} heads do not divide over {ranks} GPUs: engines refuse this"]


def _add_path(answer: Report, question: Question, path: Path) -> None:
    one = all_reduce(question, path, question.tokens)
    name = path.name.replace("-", "_")
    answer.add(f"{name}.all_reduce_us", f"{path.name}: one all-reduce", one.time_us)
    answer.notes += one.remark()
    total = communication(question, path, question.tokens)
    answer.add(f"{name}.communication_s", f"{path.name}: all of them", total)
    busbw = one.busbw_gbps
    answer.derived(f"{name}.busbw_gbps", f"{path.name}: bus bandwidth", busbw, "GB/s", [total])
    rate = path.specified(question.ranks)
    if rate.value and question.nodes == 1:
        answer.derived(
            f"{name}.part_of_rate",
            f"{path.name}: of the specified rate",
            busbw / rate.value,
            "part",
            [total, rate],
            f"{rate.value:.4g} GB/s, {rate.origin}",
        )
    wire = collectives.wire_bytes("all_reduce", "ring", question.ranks, one.request.nbytes)
    answer.exact(f"{name}.wire_bytes", f"{path.name}: ring bytes per GPU and direction", wire, "B")


def _add_prefill(
    answer: Report, question: Question, paths: list[Path], steps: list[MeasuredStep]
) -> None:
    known = {path.name: path for path in paths}
    base = next((step for step in steps if step.path in known), None)
    tokens = base.tokens if base else question.tokens
    compute = _compute(answer, question, known[base.path] if base else None, base)
    for path in paths:
        total = communication(question, path, tokens)
        name = path.name.replace("-", "_")
        is_base = base is not None and path.name == base.path
        step_s = compute.value + total.value
        why = "what the computation was taken from" if is_base else "computation + communication"
        predicted = answer.derived(
            f"{name}.prefill_s",
            f"{path.name}: prefill of {tokens} tokens",
            step_s,
            "s",
            [compute, total],
            why,
        )
        part = total.value / step_s
        answer.derived(
            f"{name}.communication_part",
            f"{path.name}: communication's part",
            part,
            "part",
            [compute, total],
        )
        measured = next((s for s in steps if s.path == path.name and not is_base), None)
        if measured and measured.tokens == tokens:
            _compare(answer, path, predicted, measured)


def _compare(answer: Report, path: Path, predicted: Quantity, measured: MeasuredStep) -> None:
    name = path.name.replace("-", "_")
    found = Quantity(measured.time_s, "s", Basis.MEASURED, measured.origin)
    answer.add(f"{name}.measured_prefill_s", f"{path.name}: prefill as measured", found)
    error = predicted.value / found.value - 1
    parts = [predicted, found]
    answer.derived(f"{name}.error", f"{path.name}: prediction's error", error, "part", parts)


def _compute(
    answer: Report, question: Question, path: Path | None, base: MeasuredStep | None
) -> Quantity:
    if base and path:
        total = communication(question, path, base.tokens)
        found = Quantity(base.time_s, "s", Basis.MEASURED, base.origin)
        answer.add("base_prefill_s", f"{base.path}: prefill of {base.tokens} tokens", found)
        if found.value <= total.value:
            raise PlanError(
                f"a step of {base.time_s:.4g} s on {base.path} is shorter than its communication,"
                f" {total.value:.4g} s"
            )
        value = found.value - total.value
        origin = f"measured step - communication on {base.path}"
        basis = weakest([found.basis, total.basis])
    else:
        parts = 2 * question.model.active_parameters * question.tokens / question.ranks / 1e12
        value = training.compute_s(parts, question.hardware.peak().value, question.mfu)
        origin = f"2 x active parameters x tokens at {question.mfu:.0%} of the peak"
        basis = Basis.ASSUMED
    return answer.add("compute_s", "computation", Quantity(value, "s", basis, origin))
