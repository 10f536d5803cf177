"""Pipeline parallelism: activations from stage to stage, and the bubble."""

from braid.plan.basis import Basis, Quantity
from braid.plan.formulas import messages, overlap, rates
from braid.plan.model import Model
from braid.plan.parallel.machines import Machines, Work
from braid.plan.predict import Request, predict
from braid.plan.report import Report
from braid.plan.wrong import PlanError, a_count, at_least


def report(
    machines: Machines, model: Model, stages: int, microbatches: int, tokens: int, work: Work
) -> Report:
    """One step: every microbatch crosses every border once forward and once back.

    `tokens` are those of one microbatch. With several nodes the borders between them count. A
    stage is one GPU.
    """
    machines.check()
    work.check()
    a_count("--stages", stages)
    a_count("--microbatches", microbatches)
    at_least("--tokens", tokens, 1)
    if stages > model.layers:
        raise PlanError(f"--stages {stages}: {model.name} has {model.layers} layers")
    answer = Report(
        "pp",
        f"PP, {model.name} in {stages} stages, {microbatches} microbatches of {tokens} tokens",
        {
            "model": model.name,
            "hardware": machines.hardware.name,
            "stages": stages,
            "microbatches": microbatches,
            "tokens": tokens,
            "nodes": machines.nodes,
            "mfu": work.mfu,
        },
    )
    nbytes = messages.activation_bytes(tokens, model.hidden)
    answer.exact("send_bytes", "one send: activations or their gradients", nbytes, "B")
    sends = 2 * microbatches * (stages > 1)
    answer.exact("sends_per_border", "sends over one border and step", sends, "")
    answer.exact("border_bytes", "over one border and step, both ways", sends * nbytes, "B")
    bubble = overlap.bubble_part(stages, microbatches)
    answer.exact("bubble_part", "stages wait for work", bubble, "part", "(p-1)/(m+p-1)")
    send = answer.add("send_us", "one send over the slowest border", _send(machines, nbytes))
    fill = answer.derived(
        "exposed_s",
        "not hidden: filling and draining the pipeline",
        2 * max(stages - 1, 0) * send.value / 1e6,
        "s",
        [send],
        "sends of other microbatches run beside computation",
    )
    _add_step(answer, machines, work, stages, send, fill)
    answer.about(model)
    return answer


def _add_step(
    answer: Report, machines: Machines, work: Work, stages: int, send: Quantity, fill: Quantity
) -> None:
    """The step with its computation, as measured or at a part of the peak."""
    if not work.compute_s and not machines.hardware.peak_tflops:
        answer.notes.append("say --peak-tflops, or --compute-ms, to see the step")
        return
    compute = work.seconds(machines.hardware, stages)
    if compute:
        answer.add("compute_s", "computation per step and GPU", compute)
        step = compute.value / (1 - answer.value("bubble_part")) + fill.value
        answer.derived("step_s", "step with bubble and sends", step, "s", [compute, send])


def _send(machines: Machines, nbytes: float) -> Quantity:
    """Between nodes when there are several, else over the node's path."""
    if machines.nodes > 1 and machines.network:
        nic = machines.network.per_gpu(machines.gpus)
        us = nbytes / (rates.achievable_gbps(nic.value)) / 1e3
        return Quantity(us, "us", Basis.ASSUMED, f"{rates.ACHIEVABLE:.0%} of {nic.origin}")
    return predict(Request("send", nbytes, 2), machines.path).time_us
