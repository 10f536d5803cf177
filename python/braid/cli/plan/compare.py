"""`braid plan what-if` and `timeline`: tables with a picture."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from braid.cli.plan import options
from braid.plan import chart, layouts, models, ranking, timeline
from braid.plan.hardware import Hardware
from braid.plan.report import Report
from braid.plan.show import show
from braid.plan.wrong import PlanError, above_zero, at_least
from braid.terminal.console import console

Svg = Annotated[Path | None, typer.Option("--svg", help="Draw it here, too.")]


_OF_HARDWARE = {"ranks": "--tp", "tokens": "--tokens"}
_OF_LAYOUT = {
    "gpus": "--gpus",
    "nodes": "--nodes",
    "network": "--network",
    "nic_gbit": "--nic-gbit",
    "nic_per": "--nic-per",
    "seq": "--seq",
    "batch": "--batch",
}
"""Options of one ranking alone, by the name of their parameter."""


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command("what-if")(what_if)
    app.command("timeline")(step)


def what_if(
    ctx: typer.Context,
    model: options.ModelName,
    by: Annotated[str, typer.Option(help="hardware, or layout.")] = "hardware",
    hw: Annotated[
        str,
        typer.Option(
            "--hw", help="Comma list of names, and of files as other commands take; all if empty."
        ),
    ] = "",
    ranks: Annotated[int, typer.Option("--tp", help="GPUs of a pass (by hardware).")] = 8,
    tokens: Annotated[int, typer.Option(help="Tokens of a pass (by hardware).")] = 4096,
    gpus: Annotated[int, typer.Option(help="GPUs per node (by layout).")] = 8,
    nodes: options.Nodes = 1,
    network: options.NetworkName = "",
    nic_gbit: options.NicGbit = 0.0,
    nic_per: options.NicPer = "",
    seq: Annotated[int, typer.Option("--seq", help="Tokens of a sequence (by layout).")] = 4096,
    batch: Annotated[int, typer.Option("--batch", help="Sequences of a step (by layout).")] = 64,
    mfu: options.Mfu = 0.5,
    peak_tflops: Annotated[
        float, typer.Option(help="Peak in TFLOP/s, dense, of GPUs that the tables do not have.")
    ] = 0.0,
    who: options.Who = "nccl",
    top: Annotated[int, typer.Option(help="Rows to show.")] = 12,
    svg: Svg = None,
    as_json: options.AsJson = False,
) -> None:
    """Rank hardware for a pass, or layouts for a training step. The pass is tensor parallel;
    layouts are TP x PP x DP, with EP where the model has experts.

    Times in ms, memory in bytes per GPU; every number says what it rests on.

    Example: braid plan what-if --model llama3-70b --tp 8 --tokens 4096 --svg hardware.svg

    Example: braid plan what-if --model llama3-8b --tp 2 --hw h100,records/gpu_large_2.json

    Example: braid plan what-if --by layout --model llama3-70b --hw h200-nvlink4 --nodes 4
    --network ib-ndr-8x400 --batch 256
    """
    at_least("--top", top, 1)
    if peak_tflops:
        above_zero("--peak-tflops", peak_tflops)
    _check_options(ctx, by)
    shape = models.find(model)
    names = [name.strip() for name in hw.split(",") if name.strip()]
    if by == "hardware":
        machines = [_machine(name, who, peak_tflops) for name in names]
        found = ranking.by_hardware(shape, ranks, tokens, machines, mfu)
        found = ranking.Ranking(found.report.first(top), found.strips[:top])
    elif by == "layout":
        if len(names) != 1:
            raise PlanError("--by layout: give one machine with --hw")
        nics = options.nics(network, nic_gbit, nic_per, nodes)
        machine = _machine(names[0], who, peak_tflops)
        job = layouts.Job(shape, machine, gpus, nodes, nics, seq, batch, mfu)
        found = layouts.by_layout(job, top)
    else:
        raise PlanError(f"--by: '{by}' is no ranking; braid has hardware, layout")
    _publish(found.report, found.strips, svg, as_json)


def _check_options(ctx: typer.Context, by: str) -> None:
    """PlanError for an option that the other ranking takes."""
    other = {"hardware": _OF_LAYOUT, "layout": _OF_HARDWARE}.get(by, {})
    for name, option in other.items():
        source = ctx.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise PlanError(f"{option}: --by {by} does not take it")


def _machine(name: str, who: str, peak_tflops: float) -> Hardware:
    """A name or a file; `peak_tflops` where the tables do not have its GPU."""
    found = options.machine(name, None, who)
    return found.with_peak(peak_tflops) if peak_tflops and not found.peak_tflops else found


def step(
    compute_ms: Annotated[float, typer.Option(help="Computation of the step in ms.")],
    comm_ms: Annotated[float, typer.Option(help="Communication of the step in ms.")] = 0.0,
    mode: Annotated[str, typer.Option(help="serial, per-layer or perfect.")] = "per-layer",
    layers: Annotated[int, typer.Option(help="Layers, for per-layer.")] = 8,
    svg: Svg = None,
    as_json: options.AsJson = False,
) -> None:
    """One step as a picture: who works when, who waits.

    Times in ms.

    Example: braid plan timeline --compute-ms 420 --comm-ms 640 --mode per-layer
    """
    answer = timeline.report(mode, compute_ms / 1e3, comm_ms / 1e3, layers)
    _publish(answer, timeline.strips(mode, compute_ms / 1e3, comm_ms / 1e3, layers), svg, as_json)


def _publish(
    answer: Report, strips: Sequence[chart.Strip], svg: Path | None, as_json: bool
) -> None:
    if svg:
        if svg.suffix != ".svg":  # a record given by mistake would be gone
            raise PlanError(f"--svg {svg}: the name must end in .svg")
        try:
            svg.write_text(chart.as_svg(strips, answer.title), encoding="utf-8")
        except OSError as error:
            raise PlanError(f"--svg {svg}: {error.strerror}") from error
    show(answer, as_json)
    if not as_json:
        out = console()
        bars = chart.as_text(strips, chart.bar_width(strips, out.width))
        out.print(bars, soft_wrap=True)
