"""Data parallelism with whole replicas: DDP."""

from braid.plan.basis import Quantity, weakest
from braid.plan.formulas import rates, training
from braid.plan.parallel.machines import Machines, Work
from braid.plan.parallel.step import beside, inputs, least
from braid.plan.report import Report
from braid.plan.shipped import constant
from braid.plan.wrong import a_count, above_zero

DDP_BUCKET_BYTES = int(constant("ddp_bucket"))
"""torch's default."""


def ddp(
    machines: Machines,
    work: Work,
    gradient_bytes: float = training.GRADIENT_BYTES,
    bucket_bytes: int = DDP_BUCKET_BYTES,
    layers: int = 1,
) -> Report:
    """One all-reduce of all gradients per step, in buckets, beside the backward pass."""
    machines.check()
    work.check()
    above_zero("--bucket", bucket_bytes)
    above_zero("--gradient-bytes", gradient_bytes)
    a_count("--layers", layers)
    ranks, rate = machines.ranks, machines.border()
    answer = Report(
        "ddp",
        f"DDP, {work.parameters / 1e9:.4g} B parameters on {machines.words()}",
        {**inputs(machines, work), "gradient_bytes": gradient_bytes, "bucket_bytes": bucket_bytes},
    )
    answer.warnings += machines.hardware.apart(machines.gpus)
    gradients = work.parameters * gradient_bytes
    count = [work.count]
    answer.derived("gradients_bytes", "gradients", gradients, "B", count)
    rough = training.ddp_rough_bytes(work.parameters, gradient_bytes)
    answer.derived(
        "wire_rough_bytes", "on the wire, rule of thumb", rough, "B", count, "2 x gradients"
    )
    wire = training.ddp_bytes(work.parameters, ranks, gradient_bytes)
    per_gpu = "on the wire per GPU and direction"
    answer.derived("wire_bytes", per_gpu, wire, "B", count, "x 2 (n-1)/n")
    if rate.value:
        rough_s = rates.seconds(rough, rate.value)
        answer.derived(
            "rough_s",
            "rule of thumb at the specified rate",
            rough_s,
            "s",
            [rate, *count],
            rate.origin,
        )
    least(answer, machines, work, [("all_reduce", gradients, 1)])
    one = machines.time("all_reduce", min(bucket_bytes, gradients))
    answer.notes += one.remark()
    number = max(gradients / bucket_bytes, 1.0)
    total = one.time_us.value * number / 1e6
    communication = answer.add(
        "communication_s",
        f"{number:.4g} buckets of {one.time_us.value:.4g} us",
        Quantity(total, "s", weakest([one.time_us.basis, work.basis]), one.time_us.origin),
    )
    beside(answer, machines, work, communication, wire, layers)
    return answer
