"""What commands check before they start, and how they refuse: one line, exit code 2."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

import typer

from braid import json_file, launched, sizes
from braid.errors import InvalidArgument
from braid.printable import printable

_MAX_RANKS = 64
_PICTURES = (".svg", ".png", ".pdf")
DEVICES = ("auto", "gpu", "cpu")


def fail(message: str) -> NoReturn:
    """One line on standard error, exit code 2."""
    print(f"braid: {printable(message)}", file=sys.stderr)
    raise typer.Exit(2)


def check_ranks(ranks: int) -> None:
    """As many as one machine takes."""
    if not 1 <= ranks <= _MAX_RANKS:
        fail(f"--ranks: asked for {ranks}, braid takes 1 to {_MAX_RANKS}")


def as_launched(context: typer.Context, parameter: typer.CallbackParam, ranks: int) -> int:
    """-n of a command that is a rank of an enclosing launch where there is one: who types another
    number than the launch has would read figures of fewer ranks, or more, than were asked for.
    """
    source = context.get_parameter_source(parameter.name or "")
    is_typed = source is not None and source.name == "COMMANDLINE"
    if is_typed and ranks and launched.is_rank() and ranks != launched.size():
        fail(
            f"--ranks: asked for {ranks}, but the launch around this has {launched.size()}:"
            " leave it out there"
        )
    return ranks


def check_outputs(json_path: Path | None, svg_path: Path | None) -> None:
    """Where the record and the picture go. Of ranks, the first alone writes."""
    if svg_path and svg_path.suffix not in _PICTURES:
        kinds = f"{', '.join(_PICTURES[:-1])} or {_PICTURES[-1]}"
        raise InvalidArgument(f"--svg: '{svg_path.name}' is no {kinds}")
    if launched.rank() == 0:
        json_file.check(json_path, "--json")
        json_file.check(svg_path, "--svg")


NCCL_DTYPES = {"half": "float16", "float": "float32", "double": "float64", "bf16": "bfloat16"}
"""nccl-tests' names of types, and ours."""
_NCCL_OPS = {"allreduce": "all_reduce", "allgather": "all_gather", "alltoall": "all_to_all"}
_NCCL_OPS["reducescatter"] = "reduce_scatter"


def our_op(name: str) -> str:
    """nccl-tests' and others' names of operations as ours: "all_reduce_perf", "allreduce"."""
    plain = name.removesuffix("_perf").replace("-", "_")
    return _NCCL_OPS.get(plain.replace("_", ""), plain)


def words(text: str, kind: str, asked: str) -> list[str]:
    """A comma list of operations ("ops"), types ("dtype") or reductions ("op"). `asked`: the
    command and the argument or option that has it, as the user typed them.
    """
    from braid.cases.host import DTYPES
    from braid.cases.operations import OPS, REDOPS

    what, allowed = {
        "ops": ("operation", OPS), "dtype": ("type", DTYPES), "op": ("reduction", REDOPS)
    }[kind]  # fmt: skip
    if kind == "ops":
        text = ",".join(our_op(word.strip()) for word in text.split(","))
    try:
        return sizes.parse_words(text, allowed, what)
    except ValueError as error:
        fail(f"{asked}: {error}")


def word(text: str, kind: str, asked: str) -> str:
    """One of them."""
    found = words(text, kind, asked)
    if len(found) > 1:
        fail(f"{asked}: asked for '{text}', it takes one")
    return found[0]


def check_device(device: str, asked: str) -> None:
    """Before anything depends on it."""
    if device not in DEVICES:
        fail(f"{asked}: '{device}' is no device; write auto, gpu or cpu")


def check_budget(seconds: float, asked: str = "bench: --time-budget") -> None:
    """NaN is refused, too."""
    most = 1e6
    if not 0 <= seconds <= most:
        fail(f"{asked}: asked for {seconds:g} s, it must be from 0 to {most:g} s")


def sizes_of(text: str, asked: str) -> list[int]:
    """A list or a range of sizes, none of them 0: that would be run as a longer one."""
    try:
        found = sizes.parse_sizes(text)
    except ValueError as error:
        fail(f"{asked}: {error}")
    if found[0] < 1:
        fail(f"{asked}: asked for {found[0]} B, at least 1 B is needed")
    return found


def check_options(options: Mapping[str, str]) -> None:
    """Options of braid.init(), seen once and before ranks start: every rank would say the same.
    A group of one rank reads them all and opens nothing; what would leave a file or a port is off.
    """
    import braid

    silent = {"trace": "", "flight_record": "", "metrics_port": "0", "log_file": "", "nvtx": "off"}
    braid.join(braid.Identity(0, 1), progress=False, **{**options, **silent}).close()
