"""Floating-point work and memory: what communication is compared with."""

from braid.plan.basis import Basis, Quantity
from braid.plan.formulas import training
from braid.plan.hardware import Hardware
from braid.plan.model import Model
from braid.plan.parallel.machines import Work
from braid.plan.report import Report
from braid.plan.wrong import a_count, above_zero


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
    answer.exact("tflop_per_gpu", "work of a step and GPU", tflop, "TFLOP", origin)
    answer.add("peak_tflops", "peak of one GPU", peak)
    if step_s:
        above_zero("--step-ms", step_s * 1e3)
        achieved = Quantity(tflop / step_s, "TFLOP/s", Basis.MEASURED, "work by the given time")
        answer.add("achieved_tflops", "achieved", achieved)
        part = training.mfu(achieved.value, peak.value)
        answer.derived("mfu", "model FLOPs utilization", part, "part", [achieved, peak])
        if part > 1:
            answer.warnings.append("more than the peak: check the peak, the time and the batch")
    compute = training.compute_s(tflop, peak.value, work.mfu)
    likely = Quantity(compute, "s", Basis.ASSUMED, f"at {work.mfu:.0%} of the peak")
    answer.add("compute_s", "the step's work takes", likely)
    return answer


def memory(parameters: float, hardware: Hardware | None) -> Report:
    """F4: weights, gradients and optimizer in mixed precision."""
    above_zero("parameters", parameters)
    answer = Report(
        "memory",
        f"memory to train {parameters / 1e9:.4g} B parameters",
        {"parameters": parameters, "hardware": hardware.name if hardware else None},
    )
    need = training.memory_bytes(parameters)
    per = training.BYTES_PER_PARAMETER
    answer.exact("memory_bytes", "weights, gradients, Adam", need, "B", f"{per} B per parameter")
    if hardware and hardware.memory_gb:
        have = Quantity(hardware.memory_gb * 1e9, "B", Basis.SPECIFIED, hardware.title)
        answer.add("gpu_bytes", "one GPU has", have)
        least = -(-need // have.value)
        answer.derived("least_gpus", "GPUs that hold it, sharded", least, "", [have])
    answer.notes.append("activations come on top")
    return answer


def shapes(model: Model) -> Report:
    """A model's parameters and message sizes."""
    answer = Report("model", model.name, {"model": model.name, "origin": model.origin})
    answer.exact("parameters", "parameters", model.parameters, "", model.origin)
    answer.exact("active_parameters", "of which one token uses", model.active_parameters, "")
    answer.exact("layers", "layers", model.layers, "")
    answer.exact("hidden", "hidden size", model.hidden, "")
    answer.exact("weights_bytes", "weights, bf16", 2 * model.parameters, "B")
    answer.exact("layer_parameters", "parameters of a layer", model.layer_parameters, "")
    answer.exact("layer_bytes", "one layer, bf16", 2 * model.layer_parameters, "B")
    if model.experts:
        answer.exact("experts", "experts of a layer", model.experts.count, "")
        answer.exact("experts_per_token", "of which a token uses", model.experts.per_token, "")
        answer.exact("expert_bytes", "one expert, bf16", 2 * model.expert_parameters, "B")
    answer.exact("activation_bytes", "activations of a token, bf16", 2 * model.hidden, "B")
    cache = 2 * model.cache_elements_per_token
    answer.exact("cache_bytes_per_token", "KV cache of a token, bf16", cache, "B")
    return answer
