"""`braid plan ddp`, `zero`, `fsdp`, `pp`, `ep`, `mfu`, `memory`."""

from typing import Annotated

import typer

from braid.cli.plan import options
from braid.plan import hardware, models, work
from braid.plan.basis import Basis, Quantity
from braid.plan.model import Model as Shape
from braid.plan.parallel import data, expert, pipeline, sharded
from braid.plan.parallel.machines import Machines, Work
from braid.plan.report import Report
from braid.plan.show import show
from braid.plan.wrong import PlanError

Params = Annotated[str, typer.Option("--params", help="Parameters, such as 2B; or give --model.")]
Model = Annotated[str, typer.Option("--model", help="Name or config.json, instead of --params.")]
Gpus = Annotated[int, typer.Option(help="GPUs per node.")]
Sequence = Annotated[int, typer.Option("--seq", help="Tokens of one sequence.")]
Batch = Annotated[int, typer.Option("--batch", help="Sequences of a step, all GPUs together.")]
Recompute = Annotated[bool, typer.Option(help="Activations are computed again: 4 passes, not 3.")]
ComputeMs = Annotated[
    float, typer.Option(help="Computation of a step in ms, measured; instead of --seq, --batch.")
]


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    for command in (ddp, zero, fsdp, pp, ep, mfu, memory):
        app.command()(command)


def _shape(params: str, model: str) -> Shape | None:
    """The model; None for --params. PlanError unless one of them is given."""
    if bool(params) == bool(model):
        raise PlanError("give --params or --model, one of them")
    return models.find(model) if model else None


def _count(params: str, shape: Shape | None) -> Quantity:
    """Its parameters, or what --params says."""
    if shape:
        return shape.counted(shape.parameters, "", shape.origin)
    return Quantity(options.parse_count(params, "--params"), "", Basis.EXACT, "as given")


def _show(answer: Report, shape: Shape | None, as_json: bool) -> None:
    """With what is to be said of the model."""
    if shape:
        answer.about(shape)
    show(answer, as_json)


def _work(
    count: Quantity,
    seq: int,
    batch: int,
    recompute: bool,
    mfu: float,
    compute_ms: float,
    active: float = 0.0,
) -> Work:
    """A step's computation, said in one of two ways. PlanError for half of one, and for both."""
    if compute_ms and (seq or batch):
        raise PlanError(
            "--compute-ms is the computation itself; --seq and --batch would say it again"
        )
    if bool(seq) != bool(batch):
        given, missing = ("--seq", "--batch") if seq else ("--batch", "--seq")
        raise PlanError(f"{given} says nothing without {missing}; give both")
    return Work(count.value, seq, batch, recompute, mfu, compute_ms / 1e3, count.basis, active)


def _where(
    machine: hardware.Hardware,
    path: str,
    gpus: int,
    nodes: int,
    nics: tuple[str, float, str],
    algorithm: str,
) -> Machines:
    """Where a job runs; `nics`: what --network, --nic-gbit and --nic-per say."""
    network = options.nics(*nics, nodes)
    return Machines(machine, machine.path(path, gpus), gpus, nodes, network, algorithm)


def ddp(
    hw: options.HardwareName,
    gpus: Gpus,
    params: Params = "",
    model: Model = "",
    nodes: options.Nodes = 1,
    network: options.NetworkName = "",
    nic_gbit: options.NicGbit = 0.0,
    nic_per: options.NicPer = "",
    path: options.PathName = "auto",
    algorithm: options.Algorithm = "auto",
    gradient_bytes: Annotated[float, typer.Option(help="Bytes per gradient on the wire.")] = 4,
    bucket: Annotated[str, typer.Option(help="Bytes of one all-reduce, such as 25MiB.")] = "25MiB",
    layers: Annotated[int, typer.Option(help="Layers, for overlap layer by layer.")] = 32,
    seq: Sequence = 0,
    batch: Batch = 0,
    recompute: Recompute = False,
    mfu: options.Mfu = 0.5,
    compute_ms: ComputeMs = 0.0,
    peak_tflops: options.PeakTflops = 0.0,
    record: options.RecordFiles = None,
    who: options.Who = "nccl",
    as_json: options.AsJson = False,
) -> None:
    """DDP: all-reduce of the gradients, and what overlap hides. Exact, and by the rule of thumb.

    Bytes per GPU and direction, rates in GB/s = 1e9 bytes per second and direction.

    Example: braid plan ddp --params 2B --gpus 8 --hw a100-nvlink3 --seq 2048 --batch 16 --recompute
    """
    machine = options.machine(hw, record, who, peak_tflops)
    where = _where(machine, path, gpus, nodes, (network, nic_gbit, nic_per), algorithm)
    shape = _shape(params, model)
    layers = shape.layers if shape else layers
    active = shape.active_parameters if shape else 0.0
    job = _work(_count(params, shape), seq, batch, recompute, mfu, compute_ms, active)
    size = options.parse_bytes(bucket, "--bucket")
    _show(data.ddp(where, job, gradient_bytes, size, layers), shape, as_json)


def zero(
    hw: options.HardwareName,
    gpus: Gpus,
    params: Params = "",
    model: Model = "",
    nodes: options.Nodes = 1,
    network: options.NetworkName = "",
    nic_gbit: options.NicGbit = 0.0,
    nic_per: options.NicPer = "",
    path: options.PathName = "auto",
    algorithm: options.Algorithm = "auto",
    element_bytes: Annotated[float, typer.Option(help="Bytes per weight and gradient.")] = 2,
    seq: Sequence = 0,
    batch: Batch = 0,
    recompute: Recompute = False,
    mfu: options.Mfu = 0.5,
    compute_ms: ComputeMs = 0.0,
    peak_tflops: options.PeakTflops = 0.0,
    record: options.RecordFiles = None,
    who: options.Who = "nccl",
    as_json: options.AsJson = False,
) -> None:
    """ZeRO stages 0 (DDP) to 3 side by side: bytes per step, times.

    Bytes per GPU and direction, rates in GB/s = 1e9 bytes per second and direction.

    Example: braid plan zero --params 10B --gpus 8 --hw a100-nvlink3
    """
    machine = options.machine(hw, record, who, peak_tflops)
    where = _where(machine, path, gpus, nodes, (network, nic_gbit, nic_per), algorithm)
    shape = _shape(params, model)
    active = shape.active_parameters if shape else 0.0
    job = _work(_count(params, shape), seq, batch, recompute, mfu, compute_ms, active)
    _show(sharded.zero(where, job, element_bytes), shape, as_json)


def fsdp(
    model: options.ModelName,
    hw: options.HardwareName,
    gpus: Gpus,
    nodes: options.Nodes = 1,
    network: options.NetworkName = "",
    nic_gbit: options.NicGbit = 0.0,
    nic_per: options.NicPer = "",
    path: options.PathName = "auto",
    algorithm: options.Algorithm = "auto",
    gradient_bytes: Annotated[float, typer.Option(help="Bytes per gradient: 2 bf16, 4 fp32.")] = 2,
    seq: Sequence = 0,
    batch: Batch = 0,
    recompute: Recompute = False,
    mfu: options.Mfu = 0.5,
    compute_ms: ComputeMs = 0.0,
    peak_tflops: options.PeakTflops = 0.0,
    record: options.RecordFiles = None,
    who: options.Who = "nccl",
    as_json: options.AsJson = False,
) -> None:
    """FSDP: two all-gathers and a reduce-scatter per layer and step.

    Bytes per GPU and direction (MiB = 2^20), rates in GB/s = 1e9 bytes per second and direction.

    Example: braid plan fsdp --model llama3-70b --gpus 8 --hw h200-nvlink4 --seq 8192 --batch 8
    """
    machine = options.machine(hw, record, who, peak_tflops)
    where = _where(machine, path, gpus, nodes, (network, nic_gbit, nic_per), algorithm)
    shape = models.find(model)
    count, active = _count("", shape), shape.active_parameters
    job = _work(count, seq, batch, recompute, mfu, compute_ms, active)
    show(sharded.fsdp(where, shape, job, gradient_bytes), as_json)


def pp(
    model: options.ModelName,
    hw: options.HardwareName,
    stages: Annotated[int, typer.Option(help="Stages: parts of the model.")],
    microbatches: Annotated[int, typer.Option(help="Microbatches of a step.")],
    tokens: Annotated[int, typer.Option(help="Tokens of one microbatch.")],
    gpus: Gpus = 8,
    nodes: options.Nodes = 1,
    network: options.NetworkName = "",
    nic_gbit: options.NicGbit = 0.0,
    nic_per: options.NicPer = "",
    path: options.PathName = "auto",
    recompute: Recompute = False,
    mfu: options.Mfu = 0.5,
    compute_ms: Annotated[
        float, typer.Option(help="Computation of a step in ms and GPU, measured; 0: from --mfu.")
    ] = 0.0,
    peak_tflops: options.PeakTflops = 0.0,
    record: options.RecordFiles = None,
    who: options.Who = "nccl",
    as_json: options.AsJson = False,
) -> None:
    """Pipeline parallelism: sends between stages, and the bubble.

    Bytes per send (MiB = 2^20), times of one step.

    Example: braid plan pp --model gpt3-175b --stages 8 --microbatches 32 --tokens 2048
    --hw a100-nvlink3
    """
    machine = options.machine(hw, record, who, peak_tflops)
    shape = models.find(model)
    way = machine.path(path, min(max(stages // max(nodes, 1), 1), gpus))
    where = Machines(machine, way, gpus, nodes, options.nics(network, nic_gbit, nic_per, nodes))
    job = Work(shape.active_parameters, tokens, microbatches, recompute, mfu, compute_ms / 1e3)
    show(pipeline.report(where, shape, stages, microbatches, tokens, job), as_json)


def ep(
    model: options.ModelName,
    hw: options.HardwareName,
    tokens: Annotated[int, typer.Option(help="Tokens of each rank in one pass.")],
    gpus: Gpus = 8,
    nodes: options.Nodes = 1,
    network: options.NetworkName = "",
    nic_gbit: options.NicGbit = 0.0,
    nic_per: options.NicPer = "",
    path: options.PathName = "auto",
    dispatch: Annotated[str, typer.Option(help="Format towards the experts: fp8 or bf16.")] = "fp8",
    record: options.RecordFiles = None,
    who: options.Who = "nccl",
    as_json: options.AsJson = False,
) -> None:
    """Expert parallelism: each layer's dispatch and combine.

    Bytes per rank (MiB = 2^20), times of one layer and of all.

    Example: braid plan ep --model deepseek-v3 --tokens 4096 --gpus 8 --hw h200-nvlink4
    """
    machine = options.machine(hw, record, who)
    way = machine.path(path, gpus, "all_to_all")
    where = Machines(machine, way, gpus, nodes, options.nics(network, nic_gbit, nic_per, nodes))
    show(expert.report(where, models.find(model), tokens, dispatch), as_json)


def mfu(
    hw: options.HardwareName,
    gpus: Annotated[int, typer.Option(help="GPUs, all nodes together.")],
    seq: Sequence,
    batch: Batch,
    params: Params = "",
    model: Model = "",
    step_ms: Annotated[float, typer.Option(help="Time of a step in ms; 0: not known.")] = 0.0,
    recompute: Recompute = False,
    mfu: options.Mfu = 0.5,
    peak_tflops: options.PeakTflops = 0.0,
    as_json: options.AsJson = False,
) -> None:
    """Work of a training step, and the part of the peak reached. In TFLOP per GPU.

    MFU counts the passes of the model, HFU also what --recompute computes again. Peaks are dense
    bf16, half of what is printed "with sparsity".

    Example: braid plan mfu --params 2B --seq 2048 --batch 16 --gpus 8 --hw a100-nvlink3
    --recompute --step-ms 420
    """
    machine = options.machine(hw, None, "nccl", peak_tflops)
    shape = _shape(params, model)
    count = shape.counted(shape.active_parameters) if shape else _count(params, None)
    job = _work(count, seq, batch, recompute, mfu, 0.0)
    _show(work.mfu(job, gpus, step_ms / 1e3, machine), shape, as_json)


def memory(
    params: Params = "",
    model: Model = "",
    hw: Annotated[str, typer.Option("--hw", help="Name, to compare with its memory.")] = "",
    as_json: options.AsJson = False,
) -> None:
    """Memory for training, without activations. 18 bytes per parameter (mixed precision, Adam).

    GB = 1e9 bytes.

    Example: braid plan memory --params 2B --hw a100-nvlink3
    """
    found = hardware.find(hw) if hw else None
    shape = _shape(params, model)
    _show(work.memory(_count(params, shape), found), shape, as_json)
