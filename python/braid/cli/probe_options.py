"""Options that the kinds of `braid bench` share, and what they mean."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from braid import launched, sizes
from braid.cli.checks import as_launched, check_outputs
from braid.errors import InvalidArgument

if TYPE_CHECKING:
    from braid.probe.publish import Output

Device = Annotated[str, typer.Option(help="auto: GPUs if there are enough; gpu, cpu.")]
Ranks = Annotated[
    int,
    typer.Option(
        "--ranks", "-n", help="Processes or GPUs; 0: as many as fit.", callback=as_launched
    ),
]
Samples = Annotated[int, typer.Option(help="Samples per case, at most.")]
Budget = Annotated[float, typer.Option("--time-budget", help="Seconds for all cases together.")]
JsonPath = Annotated[
    Path | None, typer.Option("--json", help="Write the record here; - is standard output.")
]
SvgPath = Annotated[Path | None, typer.Option("--svg", help="Draw the record here.")]
Commit = Annotated[str, typer.Option(help="For a record of a tree without git.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No table.")]
Links = Annotated[str, typer.Option(help="CPUs: links to use, a list of shm, staged, rdma.")]
Dtype = Annotated[str, typer.Option(help="float32, or on GPUs bfloat16, if not said.")]
Against = Annotated[str, typer.Option(help="Beside braid: nccl on GPUs, gloo on CPUs, or none.")]

LINKS = ("shm", "staged", "rdma")
_MOST_RANKS = 64


def fail(words: str) -> InvalidArgument:
    """One line, exit code 2."""
    return InvalidArgument(f"bench {words}")


def output(
    samples: int,
    budget_s: float,
    json_path: Path | None,
    svg_path: Path | None,
    quiet: bool,
    device: str,
    commit: str = "",
) -> "Output":
    """Checked."""
    from braid.probe.publish import Output

    if not 1 <= samples <= 100_000:
        raise fail(f"--samples: asked for {samples}, it must be from 1 to 100,000")
    if not 0 < budget_s <= 1e6:
        raise fail(f"--time-budget: asked for {budget_s:g} s, it must be above 0 s")
    check_outputs(json_path, svg_path)
    return Output(samples, budget_s, json_path, svg_path, quiet, why_cpus(device), commit)


def size(text: str, option: str) -> int:
    """Bytes, at least 1."""
    return sizes_of(text, option)[0]


def sizes_of(text: str, option: str) -> list[int]:
    """A list or a range of sizes."""
    try:
        found = sizes.parse_sizes(text)
    except ValueError as error:
        raise fail(f"{option}: {error}") from None
    if found[0] < 1:
        raise fail(f"{option}: asked for {found[0]} B, at least 1 B is needed")
    return found


def words(text: str, allowed: tuple[str, ...], option: str, what: str) -> list[str]:
    """A comma list."""
    try:
        return sizes.parse_words(text, allowed, what)
    except ValueError as error:
        raise fail(f"{option}: {error}") from None


def word(text: str, allowed: tuple[str, ...], option: str, what: str) -> str:
    """One of them."""
    found = words(text, allowed, option, what)
    if len(found) > 1:
        raise fail(f"{option}: asked for '{text}', it takes one {what}")
    return found[0]


def gpus(device: str, least: int) -> int:
    """GPUs to use; 0: CPUs. InvalidArgument when GPUs that were asked for are not there."""
    from braid.bench import gpus as machine

    if device not in ("auto", "gpu", "cpu"):
        raise fail(f"--device: '{device}' is no device; write auto, gpu or cpu")
    if device == "cpu":
        return 0
    found = machine.find()
    if found.count >= least:
        return found.count
    if device == "gpu":
        why = found.why_none or f"this machine has {found.count}, and {least} are needed"
        raise fail(f"--device: GPUs were asked for, but {why}")
    return 0


def gpus_of_ranks(device: str) -> int:
    """The same for kinds that make calls, which two GPUs at least make: each rank sees all of them,
    or its own.
    """
    from braid.bench import gpus as machine

    return gpus(device, machine.needed(2))


def need_gpus(what: str, ranks: int, instead: str = "") -> None:
    """One for each rank, before any is started: each would refuse by itself, seconds later. A rank
    of a launch needs its own. `instead`: what else can be done.
    """
    from braid.bench import gpus as machine

    least = machine.needed(ranks)
    found = machine.find()
    if found.count < least:
        are = "is" if found.count == 1 else "are"
        has = found.why_none or f"{found.count} {are} here"
        asked = f"{least} GPU{'s' if least > 1 else ''}"
        raise fail(f"{what}: asked for {asked}, one for each rank, but {has}{instead}")


def why_cpus(device: str) -> str:
    """A line for people who may have expected GPUs; "" for those who asked for CPUs."""
    from braid.bench import gpus as machine

    if device != "auto":
        return ""
    found = machine.find()
    why = found.why_none or f"this machine has {found.count} GPU"
    return f"braid: between CPUs: {why}; --device gpu insists"


def count(ranks: int, default: int, least: int, most: int) -> int:
    """How many ranks or GPUs."""
    asked = ranks or default
    if not least <= asked <= most:
        raise fail(f"--ranks: asked for {ranks}, it must be from {least} to {most}")
    return asked


def start(ranks: int) -> int:
    """The same command on so many ranks."""
    from braid.bench import gpus as machine
    from braid.launch import launch

    command = [sys.executable, "-m", "braid.cli", *sys.argv[1:]]
    with machine.starting_ranks():
        return launch(command, ranks, grace_s=30.0)


def ranks_for(device_count: int, ranks: int) -> int:
    """Ranks of a kind that makes calls. In one of them as many as its launch has."""
    if launched.is_rank():
        return launched.size()
    return count(ranks, device_count or 4, 2, device_count or _MOST_RANKS)
