"""`braid topo`: what is in this machine, or in one that was saved, and how it is joined.

Exit codes: 0 fine; 1 the machines differ (diff), or there are warnings (--check); 2 wrong
arguments or a file that is no topology.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from braid import json_file
from braid.errors import InvalidArgument

if TYPE_CHECKING:  # loaded when the command runs: other commands start without them
    from braid.topo.document import Document
    from braid.topo.facts import Machine
    from braid.topo.measured import Measured
    from braid.topo.words import Vocabulary

app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)

_VIEWS = ("matrix", "tree", "rates", "verdicts")
_EPILOG = (
    "Example: nvidia-smi topo -m > n7.txt, then anywhere: braid topo --from n7.txt --gpu h100."
    " Rates are GB/s = 1e9 bytes per second in one direction; duplex is both directions together;"
    " Gbit/s is eight times GB/s. Exit code 0 fine, 1 warnings with --check, 2 bad input."
)


@app.callback(invoke_without_command=True, epilog=_EPILOG)
def topo(
    ctx: typer.Context,
    from_path: Annotated[
        Path | None,
        typer.Option(
            "--from",
            help="Read a saved machine: nvidia-smi topo -m text, NCCL or hwloc XML,"
            " rocm-smi or amd-smi text, braid topo --json, a folder with a copy of /sys; - is"
            " standard input.",
        ),
    ] = None,
    record: Annotated[
        list[Path] | None,
        typer.Option(
            help="A bench record: measured GB/s beside the specified. May be given several times;"
            " of a link that two records measured, the first one's rate counts."
        ),
    ] = None,
    gpu: Annotated[
        str, typer.Option(help="The GPUs' model, where the source does not tell: h100, mi300x.")
    ] = "",
    words: Annotated[str, typer.Option(help="The matrix's words: nvidia or nccl.")] = "nvidia",
    matrix_only: Annotated[
        bool, typer.Option("-m", help="As nvidia-smi topo -m: the matrix alone.")
    ] = False,
    show: Annotated[str, typer.Option(help="Comma list of matrix,tree,rates,verdicts.")] = "all",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, braid.topo/1.")] = False,
    svg: Annotated[Path | None, typer.Option(help="Draw the machine here.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write one page with all views here.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Exit 1 when there are warnings.")] = False,
) -> None:
    """Show GPUs, NVLinks, PCIe, NUMA nodes and NICs, what each link carries, and what is wrong."""
    if ctx.invoked_subcommand is not None:
        return
    from braid.topo.document import document, to_json

    views = ["matrix"] if matrix_only else _views(show)
    vocabulary = _vocabulary(words)
    machine = _machine(from_path, gpu)
    whole = document(machine, [rate for path in record or [] for rate in _rates_of(path, machine)])
    if svg is not None:
        from braid.topo.show.svg import draw

        json_file.write_text(svg, draw(whole), "topo: --svg")
    if html is not None:
        from braid.topo.show.html import page

        json_file.write_text(html, page(whole), "topo: --html")
    print(to_json(whole) if as_json else _text(whole, views, vocabulary))
    if check and any(verdict.level == "warning" for verdict in whole.derived.verdicts):
        raise typer.Exit(1)


@app.command(epilog="Example: braid topo diff node7.json node8.json. Exit code 1 when they differ.")
def diff(
    a: Annotated[Path, typer.Argument(help="A saved machine, in any form that --from takes.")],
    b: Annotated[Path, typer.Argument(help="Another one.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False,
) -> None:
    """Say what differs between two saved machines."""
    from braid.topo.diff import diff as compare
    from braid.topo.read import load
    from braid.topo.show.columns import align

    found = compare(load(a), load(b))
    if as_json:
        print(json.dumps([asdict(one) for one in found], indent=1))
    elif found:
        rows = [["", str(a), str(b)], *([x.what, x.a or "-", x.b or "-"] for x in found)]
        print("\n".join(align(rows)))
    else:
        print("no difference")
    raise typer.Exit(1 if found else 0)


def _views(text: str) -> list[str]:
    views = list(_VIEWS) if text == "all" else [word.strip() for word in text.split(",")]
    for view in views:
        if view not in _VIEWS:
            raise InvalidArgument(
                f"topo: --show: '{view}' is no view; braid has {', '.join(_VIEWS)}"
            )
    return views


def _vocabulary(text: str) -> "Vocabulary":
    if text == "nvidia":
        return "nvidia"
    if text == "nccl":
        return "nccl"
    raise InvalidArgument(f"topo: --words: asked for nvidia or nccl, found '{text}'")


def _machine(path: Path | None, gpu: str) -> "Machine":
    from braid.topo import read

    gpu = _gpu(gpu) if gpu else ""
    if path is not None:
        machine = read.load(path)
    else:
        from braid.topo.read import live

        machine = live.read()
    return read.with_model(machine, gpu) if gpu else machine


def _gpu(asked: str) -> str:
    """As drivers name it: "RTX 4090" for "4090". InvalidArgument that lists what there is."""
    from braid.plan import shipped
    from braid.topo import tables

    for name in (asked, f"RTX {asked}"):
        if tables.model_known(name) or tables.pcie_of_model(name):
            return name
    raise InvalidArgument(
        f"topo: --gpu: '{asked}' is no GPU that braid knows the links of; it knows"
        f" {', '.join(shipped.table('gpus'))}, and others as drivers name them"
    )


def _rates_of(path: Path, machine: "Machine") -> "list[Measured]":
    from braid.topo.measured import rates_for

    found = rates_for(machine, path)
    if not found:
        raise InvalidArgument(
            f"topo: --record {path}: nothing in it measured a link of this machine;"
            " p2p and host on GPUs do, and NCCL's all_gather"
        )
    return found


def _text(whole: "Document", views: Sequence[str], vocabulary: "Vocabulary") -> str:
    from braid.topo.show import matrix, tables, tree

    parts = {
        "matrix": lambda: matrix.lines(whole.machine, vocabulary),
        "tree": lambda: tree.lines(whole.machine, getattr(sys.stdout, "encoding", None)),
        "rates": lambda: _rates(whole),
        "verdicts": lambda: tables.verdict_lines(whole.derived.verdicts) or ["no warnings"],
    }
    blocks = [parts[view]() for view in views]
    shown = "\n\n".join("\n".join(lines) for lines in blocks if lines)
    return shown or f"no {' and no '.join(views)}: there is no GPU"


def _rates(whole: "Document") -> list[str]:
    from braid.topo.show import tables

    lines = tables.rate_lines(whole.derived.links) or _no_rates(whole)
    pairs = tables.pair_lines(whole.derived.measured_pairs)
    return [*lines, *([""] if pairs else []), *pairs]


def _no_rates(whole: "Document") -> list[str]:
    if not whole.machine.gpus:
        return []
    model = "mi300x" if whole.machine.source.format == "rocm-smi" else "h100"
    return [f"No link's rate is known: the source tells neither lanes nor GPUs; try --gpu {model}"]
