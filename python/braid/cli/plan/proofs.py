"""`braid plan check` and `validate`: the tool on trial."""

from pathlib import Path
from typing import Annotated

import typer

from braid.cli.plan import options
from braid.plan import records, trial
from braid.plan.show import show

MAX_MEDIAN, MAX_WORST = 0.05, 0.15


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command()(check)
    app.command()(validate)


def check(
    number: Annotated[str, typer.Argument(help="Such as F17; all if not given.")] = "",
    as_json: options.AsJson = False,
) -> None:
    """Published figures beside what braid computes. Exit code 1 when one is off.

    F: formulas, C: claims of articles, T: what articles got wrong, M: message sizes.

    Example: braid plan check F17
    """
    answer, misses = trial.published(number)
    show(answer, as_json)
    raise typer.Exit(1 if misses else 0)


def validate(
    files: Annotated[list[Path], typer.Argument(help="Records of braid bench.")],
    who: options.Who = "nccl",
    ops: Annotated[str, typer.Option(help="Comma list of operations.")] = "all_reduce,all_gather",
    first: Annotated[
        int,
        typer.Option(help="The first inner point left out, 1 or 2; 0: one half, then the other."),
    ] = 0,
    as_json: options.AsJson = False,
) -> None:
    """Predict every second measured size from the others.

    Times in us. Exit code 1 when the median error is above 5 % or the worst above 15 %.

    Example: braid plan validate records/gpu_small_2.json records/gpu_large_2.json --first 1
    """
    curves = [
        curve
        for file in files
        for curve in options.curves(records.load(file), who, file)
        if curve.op in ops.split(",")
    ]
    answer = trial.left_out(curves, first, who)
    show(answer, as_json)
    misses = answer.value("median_error") > MAX_MEDIAN or answer.value("worst_error") > MAX_WORST
    raise typer.Exit(1 if misses else 0)
