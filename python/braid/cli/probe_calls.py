"""`braid bench latency`, `compute-overlap`, `replay`: kinds that make collective calls on ranks."""

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from braid import launched
from braid.cli import probe_options as options

if TYPE_CHECKING:
    from braid.probe.call_kinds import Team
    from braid.probe.job import Job
    from braid.probe.player import Player
    from braid.probe.publish import Figures, Output
    from braid.probe.worker import Worker

    Make = Callable[[Team, Sequence[Player], Worker], list[Job]]


def latency(
    total: Annotated[str, typer.Option(help="Bytes in all, such as 4GiB.")] = "",
    messages: Annotated[int, typer.Option(help="Calls that they are cut into.")] = 1000,
    op: Annotated[str, typer.Option(help="The operation.")] = "all_reduce",
    dtype: options.Dtype = "",
    against: options.Against = "",
    links: options.Links = "",
    device: options.Device = "auto",
    ranks: options.Ranks = 0,
    samples: options.Samples = 10,
    budget: options.Budget = 30.0,
    json_path: options.JsonPath = None,
    svg_path: options.SvgPath = None,
    commit: options.Commit = "",
    quiet: options.Quiet = False,
) -> None:
    """The same bytes in one call and in many. 1 x 4 GiB against 1000 x 4 MiB; us and GB/s.

    Both are warmed up, every size on its own. Between CPUs 64 MiB if not said.
    """
    from braid.cases.operations import OPS
    from braid.probe import call_kinds
    from braid.probe.player import Call

    count = options.gpus_of_ranks(device)
    nbytes = options.size(total or ("4GiB" if count else "64MiB"), "--total")
    _within("--messages", messages, 2, 1_000_000)
    kind = _dtype(dtype, count)
    call = Call(options.word(op, OPS, "--op", "operation"), nbytes, kind)

    def make(team: "Team", players: "Sequence[Player]", _: "Worker") -> "list[Job]":
        return call_kinds.latency(team, players, call, messages)

    output = options.output(samples, budget, json_path, svg_path, quiet, device, commit)
    said = {"op": call.op, "bytes": str(nbytes), "messages": str(messages), "dtype": kind}
    _go("latency", count, ranks, against, links, output, make, call_kinds.gain, said)


def compute_overlap(
    op: Annotated[str, typer.Option(help="The operation.")] = "all_reduce",
    size: Annotated[str, typer.Option(help="Bytes of a call.")] = "",
    dtype: options.Dtype = "",
    against: options.Against = "",
    links: options.Links = "",
    device: options.Device = "auto",
    ranks: options.Ranks = 0,
    samples: options.Samples = 20,
    budget: options.Budget = 20.0,
    json_path: options.JsonPath = None,
    svg_path: options.SvgPath = None,
    commit: options.Commit = "",
    quiet: options.Quiet = False,
) -> None:
    """How much of a call hides behind products of matrices. They take as long; us, and parts.

    1: all of it; below 0: they slow each other down by more than they share.
    """
    from braid.cases.operations import OPS
    from braid.probe import call_kinds
    from braid.probe.player import Call

    count = options.gpus_of_ranks(device)
    nbytes = options.size(size or ("256MiB" if count else "8MiB"), "--size")
    kind = _dtype(dtype, count)
    call = Call(options.word(op, OPS, "--op", "operation"), nbytes, kind)

    def make(team: "Team", players: "Sequence[Player]", worker: "Worker") -> "list[Job]":
        return call_kinds.overlap(team, players, call, worker)

    output = options.output(samples, budget, json_path, svg_path, quiet, device, commit)
    said = {"op": call.op, "bytes": str(nbytes), "dtype": kind}
    _go("overlap", count, ranks, against, links, output, make, call_kinds.hidden, said)


def replay(
    trace: Annotated[Path, typer.Argument(help="A call a line: op, bytes, dtype, count.")],
    against: options.Against = "",
    links: options.Links = "",
    device: options.Device = "auto",
    ranks: options.Ranks = 0,
    samples: options.Samples = 10,
    budget: options.Budget = 60.0,
    json_path: options.JsonPath = None,
    svg_path: options.SvgPath = None,
    commit: options.Commit = "",
    quiet: options.Quiet = False,
) -> None:
    """Make the collective calls of a real job. The whole trace and each call alone; us and GB/s.

    A line of TRACE: {"op": "all_reduce", "bytes": 67108864, "dtype": "float32", "count": 160}.
    """
    from braid.probe import call_kinds
    from braid.probe import trace as traces

    count = options.gpus_of_ranks(device)
    calls = traces.read(trace, _dtypes(count), "on GPUs" if count else "between CPUs")

    def make(team: "Team", players: "Sequence[Player]", _: "Worker") -> "list[Job]":
        return call_kinds.replay(team, players, calls)

    output = options.output(samples, budget, json_path, svg_path, quiet, device, commit)
    said = {"trace": trace.name, "calls": str(len(calls))}
    _go("replay", count, ranks, against, links, output, make, call_kinds.to_first, said)


def _dtypes(gpu_count: int) -> tuple[str, ...]:
    """Those that calls have here."""
    if gpu_count:
        from braid.cases import gpu

        return tuple(gpu.DTYPES)
    from braid.cases import host

    return host.DTYPES


def _dtype(text: str, gpu_count: int) -> str:
    chosen = text or ("bfloat16" if gpu_count else "float32")
    return options.word(chosen, _dtypes(gpu_count), "--dtype", "dtype")


def _within(option: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise options.fail(f"{option}: asked for {value:,}, it must be from {least:,} to {most:,}")


def baseline(text: str, gpu_count: int) -> str:
    """The library beside braid, checked."""
    allowed = ("nccl", "none") if gpu_count else ("gloo", "none")
    if text and text not in allowed:
        where = "on GPUs" if gpu_count else "between CPUs"
        raise options.fail(
            f"--against: '{text}' is no baseline here, {where}; write {' or '.join(allowed)}"
        )
    if text == "gloo" and importlib.util.find_spec("torch") is None:
        raise options.fail("--against: gloo needs torch, which is not installed here")
    return text or ("nccl" if gpu_count else "none")


def _go(
    kind: str,
    count: int,
    ranks: int,
    against: str,
    links: str,
    output: "Output",
    make: "Make",
    figures: "Figures",
    said: dict[str, str],
) -> None:
    """Starts the ranks, or is one of them."""
    beside = baseline(against, count)
    if links:
        options.words(links, options.LINKS, "--links", "link")
    if not launched.is_rank():
        raise typer.Exit(options.start(options.ranks_for(count, ranks)))
    from braid.probe.session import Asked, run_rank

    chosen = {"links": links or ("shm" if count else "")}
    comm_options = {name: text for name, text in chosen.items() if text}
    raise typer.Exit(
        run_rank(
            Asked(
                kind, bool(count), beside, output, make, figures,
                {**said, "against": beside}, comm_options,
            )
        )
    )  # fmt: skip


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    for command, example in (
        (latency, "braid bench latency --total 4GiB --messages 1000"),
        (compute_overlap, "braid bench compute-overlap --op all_gather --size 256MiB"),
        (replay, "braid bench replay trace.jsonl --against gloo"),
    ):
        app.command(epilog=f"Example: {example}. Exit code 0 fine, 1 wrong bytes, 2 bad input.")(
            command
        )
