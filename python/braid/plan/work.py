"""Floating-point work and memory: what communication is compared with."""

from braid.plan.answer import Value
from braid.plan.basis import Basis, Quantity, weakest
from braid.plan.formulas import training
from braid.plan.hardware import Hardware
from braid.plan.model import Model
from braid.plan.parallel.machines import Work
from braid.plan.report import Report
from braid.plan.wrong import a_count, above_zero, at_least


def mfu(work: Work, gpus: int, step_s: float, hardware: Hardware) -> Report:
    """F9 to F11: the work of a step, and what part of the peak it reached."""
    a_count("--gpus", gpus)
    work.check()
    above_zero("--seq", work.sequence)
    above_zero("--batch", work.batch)
    peak = hardware.peak()
    answer = Report(
        "mfu",
        f"{work.parameters / 1e9:.4g} B parameters, {work.batch} x {work.sequence} tokens,"
        f" {gpus} x {hardware.title}",
        {
            "parameters": work.parameters,
            "sequence": work.sequence,
            "batch": work.batch,
            "gpus": gpus,
            "recompute": work.recompute,
            "hardware": hardware.name,
        },
    )
    tflop = work.tflop_per_gpu(gpus)
    passes = training.FORWARD_BACKWARD + work.recompute
    origin = f"{passes} passes x 2 x parameters x tokens / GPUs"
    answer.derived("tflop_per_gpu", "work of a step and GPU", tflop, "TFLOP", [work.count], origin)
    answer.add("peak_tflops", "peak of one GPU", peak)
    if step_s:
        above_zero("--step-ms", step_s * 1e3)
        _add_parts(answer, work, tflop / step_s, peak)
    compute = training.compute_s(tflop, peak.value, work.mfu)
    likely = Quantity(compute, "s", Basis.ASSUMED, f"at {work.mfu:.0%} of the peak")
    answer.add("compute_s", "the step's work takes", likely)
    return answer


def _add_parts(answer: Report, work: Work, achieved_tflops: float, peak: Quantity) -> None:
    """F11. A pass that is computed again keeps the hardware busy, but is no work of the model."""
    basis = weakest([Basis.MEASURED, work.basis])
    achieved = Quantity(achieved_tflops, "TFLOP/s", basis, "work by the given time")
    answer.add("achieved_tflops", "achieved", achieved)
    busy = training.mfu(achieved.value, peak.value)
    passes = training.FORWARD_BACKWARD + work.recompute
    useful = busy * training.FORWARD_BACKWARD / passes
    why = f"{training.FORWARD_BACKWARD} of {passes} passes" if work.recompute else ""
    parts = [achieved, peak]
    answer.derived("mfu", "model FLOPs utilization (MFU)", useful, "part", parts, why)
    if work.recompute:
        why = "what is computed again counts, too"
        answer.derived("hfu", "hardware FLOPs utilization (HFU)", busy, "part", parts, why)
    if busy > 1:
        answer.warnings.append("more than the peak: check the peak, the time and the batch")


def memory(parameters: Quantity, hardware: Hardware | None) -> Report:
    """F4: weights, gradients and optimizer in mixed precision."""
    count = parameters.value
    above_zero("parameters", count)
    answer = Report(
        "memory",
        f"memory to train {count / 1e9:.4g} B parameters",
        {"parameters": count, "hardware": hardware.name if hardware else None},
    )
    need = training.memory_bytes(count)
    per = f"{training.BYTES_PER_PARAMETER} B per parameter"
    answer.derived("memory_bytes", "weights, gradients, Adam", need, "B", [parameters], per)
    if hardware and hardware.memory_gb:
        have = Quantity(hardware.memory_gb * 1e9, "B", Basis.SPECIFIED, hardware.title)
        answer.add("gpu_bytes", "one GPU has", have)
        least = -(-need // have.value)
        answer.derived("least_gpus", "GPUs that hold it, sharded", least, "", [have, parameters])
    answer.notes.append("activations come on top")
    return answer


def shapes(model: Model, tokens: int = 0) -> Report:
    """A model's parameters and message sizes, and what a sequence of `tokens` caches."""
    at_least("--tokens", tokens, 0)
    inputs: dict[str, Value] = {"model": model.name, "origin": model.origin, "tokens": tokens}
    answer = Report("model", model.name, inputs)
    answer.add("parameters", "parameters", model.counted(model.parameters, "", model.origin))
    answer.add(
        "active_parameters", "of which one token uses", model.counted(model.active_parameters)
    )
    answer.exact("layers", "layers", model.layers, "")
    answer.exact("hidden", "hidden size", model.hidden, "")
    answer.add("weights_bytes", "weights, bf16", model.counted(2 * model.parameters, "B"))
    layer = model.layer_parameters
    answer.add("layer_parameters", "parameters of the largest layer", model.counted(layer))
    answer.add("layer_bytes", "the largest layer, bf16", model.counted(2 * layer, "B"))
    if model.experts:
        answer.exact("experts", "experts of a layer", model.experts.count, "")
        answer.exact("sparse_layers", "layers with experts", model.sparse_layers, "")
        answer.exact("experts_per_token", "of which a token uses", model.experts.per_token, "")
        expert = model.counted(2 * model.expert_parameters, "B")
        answer.add("expert_bytes", "one expert, bf16", expert)
    answer.exact("activation_bytes", "activations of a token, bf16", 2 * model.hidden, "B")
    _add_cache(answer, model, tokens)
    answer.about(model)
    return answer


def _add_cache(answer: Report, model: Model, tokens: int) -> None:
    each = 2 * model.cache_elements_per_token
    answer.add("cache_bytes_per_token", "KV cache of a token, bf16", model.counted(each, "B"))
    windowed = 2 * model.windowed_elements_per_token
    if windowed:
        why = f"at most {model.widest_window:,} tokens are kept"
        answer.add(
            "windowed_bytes_per_token",
            "of which in layers with a window",
            model.counted(windowed, "B", why),
        )
    if model.state_elements:
        state = Quantity(2 * model.state_elements, "B", Basis.ASSUMED, "as bf16; some keep fp32")
        answer.add("state_bytes", "state of a sequence in recurrent layers", state)
    if tokens:
        whole = model.counted(2 * model.cache_elements(tokens), "B", "windows hold no more")
        answer.add("cache_bytes", f"KV cache of {tokens:,} tokens, bf16", whole)
