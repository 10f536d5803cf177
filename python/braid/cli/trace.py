"""`braid trace`: timelines of ranks as one file, and as a table.

Exit codes: 0 fine; 2 a file that is no timeline.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from braid import json_file, timeline
from braid.sizes import format_size

app = typer.Typer(
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    help="Timelines of calls: put those of all ranks together, or add them up.",
)

Files = Annotated[list[Path], typer.Argument(help="Files that BRAID_TRACE or comm.trace() wrote.")]


@app.command(
    epilog="Example: braid trace merge trace.0.json trace.1.json -o job.json, then open job.json at"
    " ui.perfetto.dev. Exit code 0 fine, 2 bad input."
)
def merge(
    files: Files,
    out: Annotated[Path, typer.Option("--out", "-o", help="The file with all ranks.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Put the ranks' timelines into one file."""
    whole = timeline.merge([timeline.read(path) for path in files])
    json_file.write_text(out, json.dumps(whole), "trace merge: --out")
    found = {
        "out": str(out),
        "files": len(files),
        "ranks": len({event["pid"] for event in whole["traceEvents"]}),
        "events": len(whole["traceEvents"]),
    }
    if as_json:
        print(json.dumps(found))
    else:
        print(f"{out}: {found['events']} events of {found['ranks']} processes", file=sys.stderr)


@app.command(
    epilog="Example: braid trace summary trace.*.json. Times in us, busbw in GB/s = 1e9 bytes per"
    " second; both are medians over calls and ranks. Exit code 0 fine, 2 bad input."
)
def summary(
    files: Files,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Add up the calls of timelines by operation, type and size."""
    rows = timeline.summary([timeline.read(path) for path in files])
    if as_json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
        return
    print(f"{'op':15}{'memory':8}{'type':15}{'size':>10}  {'path':14}{'calls':>8}"
          f"{'median us':>13}{'busbw':>9}")  # fmt: skip
    for row in rows:
        print(
            f"{row.op:15}{row.memory:8}{row.dtype:15}{format_size(row.bytes):>10}"
            f"  {row.path:14}{row.calls:8}{row.median_us:13.1f}{row.busbw_gbps:9.2f}"
        )
