"""`braid bench tp-block`: a tensor-parallel block measured, beside what braid plan says of it."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from braid import launched
from braid.cli import probe_options as options
from braid.cli.compare import parse_tolerance
from braid.cli.probe_calls import baseline

if TYPE_CHECKING:
    from collections.abc import Sequence

    from braid.plan.curve import Curve
    from braid.plan.parallel.block import Shape
    from braid.probe.block_kind import Forecast
    from braid.probe.call_kinds import Team
    from braid.probe.job import Job
    from braid.probe.player import Player
    from braid.probe.publish import Output
    from braid.probe.worker import Worker
    from braid.record.probe import Series

_MOST_TOKENS, _MOST_LAYERS = 1 << 20, 1000


def tp_block(
    model: Annotated[
        str, typer.Option(help="llama3-8b, llama3-70b, llama3-405b, or a config.json.")
    ] = "llama3-8b",
    tokens: Annotated[int, typer.Option(help="Tokens; 0: 4096 on GPUs, 16 between CPUs.")] = 0,
    layers: Annotated[int, typer.Option(help="Blocks in a row, with weights of their own.")] = 4,
    record: Annotated[
        list[Path] | None,
        typer.Option(help="Bench record that predicts the all-reduce; repeatable."),
    ] = None,
    within: Annotated[
        str, typer.Option(help="Exit code 1 when a prediction is further off: 10% or 0.1.")
    ] = "",
    against: options.Against = "",
    links: options.Links = "",
    device: options.Device = "auto",
    ranks: options.Ranks = 0,
    samples: options.Samples = 20,
    budget: options.Budget = 60.0,
    json_path: options.JsonPath = None,
    svg_path: options.SvgPath = None,
    commit: options.Commit = "",
    quiet: options.Quiet = False,
) -> None:
    """Time a transformer block whose layers ranks share. Beside it what braid plan predicts; us.

    Predicted: the parts of the block, each measured alone, and two all-reduces as braid plan
    reads them out of --record, or out of all-reduces of other sizes in this run.
    """
    from braid.plan import models
    from braid.plan.parallel.block import Shape
    from braid.probe.block_kind import Forecast
    from braid.probe.player import Call

    count = options.gpus_of_ranks(device)
    size = options.ranks_for(count, ranks)
    _check(layers, tokens, links)
    allowed = parse_tolerance(within, "bench tp-block: --within") if within else None
    shape = Shape.of(models.find(model), size, tokens or (4096 if count else 16))
    who = baseline(against, count)
    output = options.output(samples, budget, json_path, svg_path, quiet, device, commit)
    dtype, element_bytes = ("bfloat16", 2) if count else ("float32", 4)
    call = Call("all_reduce", shape.payload_bytes(element_bytes), dtype)
    players = ["braid"] if who == "none" else ["braid", who]
    forecast = Forecast(size, call, _curves(record or [], players))
    _check_records(forecast, record or [])
    if not launched.is_rank():
        if not count:  # ranks that all compute on all cores wait for each other
            cores = max((os.cpu_count() or 1) // size, 1)
            os.environ.setdefault("OPENBLAS_NUM_THREADS", str(cores))
        raise typer.Exit(options.start(size))
    said = {
        "model": model, "tokens": str(shape.tokens), "layers": str(layers),
        "bytes": str(call.total_bytes), "dtype": dtype, "against": who,
        "predicted from": ", ".join(str(path) for path in record or []) or "this run",
    }  # fmt: skip
    comm_options = {"links": links or ("shm" if count else "")}
    run = _Run(shape, layers, bool(count), who, output, forecast, said, comm_options)
    raise typer.Exit(run.on_this_rank(allowed))


@dataclass(frozen=True)
class _Run:
    """Everything that a rank needs."""

    shape: "Shape"
    layers: int
    on_gpus: bool
    against: str
    output: "Output"
    forecast: "Forecast"
    settings: dict[str, str]
    comm_options: dict[str, str]

    def on_this_rank(self, allowed: float | None) -> int:
        """The exit code: that of the measurement; 1 when a prediction is missing or further off
        than `allowed`.
        """
        from braid.probe import block_kind
        from braid.probe.session import Asked, run_rank

        errors: dict[str, float] = {}

        def figures(series: "Sequence[Series]") -> dict[str, float]:
            found = self.forecast.figures(series)
            errors.update(block_kind.errors(found))
            return found

        chosen = {name: text for name, text in self.comm_options.items() if text}
        code = run_rank(
            Asked(
                "tp-block", self.on_gpus, self.against, self.output, self._jobs, figures,
                self.settings, chosen,
            )
        )  # fmt: skip
        if code or allowed is None:
            return code
        return int(not errors or max(map(abs, errors.values())) > allowed)

    def _jobs(self, team: "Team", players: "Sequence[Player]", _: "Worker") -> "list[Job]":
        from braid.probe import block, block_kind

        kind = block.TorchBlock if self.on_gpus else block.HostBlock
        return block_kind.jobs(team, players, kind(self.shape, self.layers), self.forecast.call)


def _check(layers: int, tokens: int, links: str) -> None:
    if not 1 <= layers <= _MOST_LAYERS:
        raise options.fail(f"--layers: asked for {layers}, it must be from 1 to {_MOST_LAYERS:,}")
    if tokens > _MOST_TOKENS:
        raise options.fail(f"--tokens: asked for {tokens:,}, it must be at most {_MOST_TOKENS:,}")
    if links:
        options.words(links, options.LINKS, "--links", "link")


def _curves(files: list[Path], players: "Sequence[str]") -> "dict[str, list[Curve]]":
    """Records' all-reduces by library."""
    from braid.plan import records

    found: dict[str, list[Curve]] = {}
    for file in files:
        document = records.load(file)
        for who in players:
            curves = records.curves(document, who, file.name)
            found.setdefault(who, []).extend(c for c in curves if c.op == "all_reduce")
    return found


def _check_records(forecast: "Forecast", files: list[Path]) -> None:
    """Records that were asked for must say something about somebody's call."""
    if files and not any(forecast.from_records_us(who) for who in forecast.curves):
        names, call = " and ".join(forecast.curves), forecast.call
        raise options.fail(
            f"tp-block: --record: no all_reduce of {names} near {call.total_bytes} B on"
            f" {forecast.ranks} ranks in {', '.join(path.name for path in files)}"
        )


def register(app: typer.Typer) -> None:
    """Adds the command."""
    example = "braid bench tp-block --model llama3-70b --tokens 4096 --record records/nccl.json"
    codes = "0 fine, 1 wrong bytes or a prediction beyond --within, 2 bad input"
    app.command("tp-block", epilog=f"Example: {example}. Exit code {codes}.")(tp_block)
