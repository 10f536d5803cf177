"""`braid bench kv`: pages of a KV cache between two processes."""

from pathlib import Path
from typing import Annotated

import typer

from braid.cli import probe_options as options

_WAYS = ("local", "tcp", "net")


def kv(
    sizes: Annotated[str, typer.Option(help="Bytes of a page.")] = "8KiB,64KiB",
    ways: Annotated[
        str, typer.Option(help="local (one host, no NIC), or tcp, net of libfabric.")
    ] = "local,tcp",
    total: Annotated[str, typer.Option(help="Bytes of the pages of a request.")] = "64MiB",
    layer_ms: Annotated[
        float, typer.Option(help="Also layers behind computing of so many ms each; 0: not.")
    ] = 25.0,
    nixl_python: Annotated[
        Path | None, typer.Option(help="A Python that can import nixl: NIXL over UCX, too.")
    ] = None,
    samples: options.Samples = 20,
    budget: options.Budget = 60.0,
    json_path: options.JsonPath = None,
    svg_path: options.SvgPath = None,
    commit: options.Commit = "",
    quiet: options.Quiet = False,
) -> None:
    """Requests of pages, pushed and pulled. Beside the engine alone and NIXL; times in us, GB/s.

    Figures are speed-ups (the other's time / braid.kv's): above 1, braid.kv is faster; "exposed" is
    the time of a prefill with its transfers beyond that of its computing alone, as a share.
    """
    output = options.output(samples, budget, json_path, svg_path, quiet, "cpu", commit)
    chosen = options.words(ways, _WAYS, "kv: --ways", "way")
    page_sizes = options.sizes_of(sizes, "kv: --sizes")
    nbytes = options.size(total, "kv: --total")
    for size in page_sizes:
        if size % 8 or size * 8 > nbytes:
            raise options.fail(f"kv: --sizes: {size} B is no multiple of 8, or not 8 in --total")
    from braid.bench.kv import jobs
    from braid.probe.publish import Run, measure

    found = jobs.Field(nbytes, nixl_python)
    run = Run(
        "kv-pages", "", jobs.jobs(page_sizes, chosen, layer_ms, found), output,
        {"total": str(nbytes), "layers": "8", "layer_ms": f"{layer_ms:g}"}, ranks=0,
        figures=jobs.ratios_of,
    )  # fmt: skip
    try:
        code = measure(run)
    finally:
        found.close()
    raise typer.Exit(code)


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(
        epilog="Example: braid bench kv --ways local --sizes 64KiB. Exit code 0 fine, 1 wrong or "
        "lost, 2 bad input."
    )(kv)
