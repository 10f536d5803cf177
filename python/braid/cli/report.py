"""`braid report`: one page about a machine and what was measured on it.

Exit codes: 0 fine, 2 wrong arguments, or a file that cannot be read.
"""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from braid import json_file
from braid.printable import printable

EPILOG = (
    "Example: braid report --from topo.json --model llama3-70b --out report.html"
    " records/gpu_large_2.json. Bandwidths are GB/s = 1e9 bytes per second in one direction."
    " Exit code 0 fine, 2 bad input."
)


if TYPE_CHECKING:
    from braid.topo.facts import Machine
    from braid.topo.measured import Measured

_OF_A_PLAN = {"tokens": "--tokens", "tp": "--tp", "mfu": "--mfu", "peak_tflops": "--peak-tflops"}


def report(
    ctx: typer.Context,
    records: Annotated[
        list[Path] | None, typer.Argument(help="Records of braid bench, on CPUs or GPUs.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Where the page goes.")] = Path("report.html"),
    from_path: Annotated[
        Path | None, typer.Option("--from", help="A saved machine, as braid topo reads them.")
    ] = None,
    model: Annotated[
        str, typer.Option(help="Plan one pass of this model: llama3-70b, or a config.json.")
    ] = "",
    tokens: Annotated[int, typer.Option(help="Tokens of that pass.")] = 4096,
    tp: Annotated[int, typer.Option(help="GPUs that share every layer; 0: all.")] = 0,
    mfu: Annotated[float, typer.Option(help="Part of the peak that it reaches, 0 to 1.")] = 0.5,
    peak_tflops: Annotated[
        float, typer.Option(help="Peak of one GPU, dense TFLOP/s; 0: by its name.")
    ] = 0.0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Say what was written as JSON, braid.report/1.")
    ] = False,
) -> None:
    """Write one page about a machine and what was measured on it.

    A summary in words, the machine, its warnings, bandwidth curves, shares, a plan, provenance.
    """
    if not model:
        _check_nothing_planned(ctx)
    from braid.report import answer, plan
    from braid.report.page import page
    from braid.report.runs import Run, load
    from braid.topo.document import document
    from braid.topo.read import load as load_machine
    from braid.topo.read import with_model

    runs = [load(path) for path in records or []]
    if from_path is not None:
        machine = load_machine(from_path)
    else:
        from braid.topo.read import live

        machine = live.read()
    if models := {run.gpu for run in runs if isinstance(run, Run) and run.gpu}:
        machine = with_model(machine, min(models))  # where the source does not tell it
    is_elsewhere = from_path is None and not machine.gpus
    measured = [rate for path in records or [] for rate in _rates(machine, path, is_elsewhere)]
    whole = document(machine, measured)
    asked = plan.Asked(model, tokens, tp, mfu, peak_tflops)
    found = plan.plans(asked, whole, records or []) if model else []
    json_file.write_text(out, page(whole, runs, found), "report: --out")
    if as_json:
        print(json.dumps(answer.document(out, whole, runs, found), indent=1))
    else:
        print(f"braid: wrote {out}")


def _rates(machine: "Machine", path: Path, is_elsewhere: bool) -> "list[Measured]":
    """A record's rates of the machine's links. Where GPUs were measured and this machine has none
    the page is read elsewhere: the record is shown, and marks no link.
    """
    from braid.topo.measured import load, rates_for

    if is_elsewhere and (gpu := load(path).gpu):
        said = f"{path}: a record of {gpu}, and this machine has no GPU: it marks no link"
        print(f"braid: report: {printable(said)}; --from gives the machine", file=sys.stderr)
        return []
    return rates_for(machine, path)


def _check_nothing_planned(ctx: typer.Context) -> None:
    """PlanError for an option that only a plan takes."""
    from braid.plan.wrong import PlanError

    for name, option in _OF_A_PLAN.items():
        source = ctx.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise PlanError(f"report: {option} says nothing without --model; give both")
