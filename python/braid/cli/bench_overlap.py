"""`braid bench overlap`: GEMMs that communicate, on one GPU whose peers are host memory."""

from typing import Annotated

import typer

from braid.cli import probe_options as options


def overlap(
    stand: Annotated[
        bool, typer.Option("--stand", help="Peers are host memory: what one GPU can do.")
    ] = False,
    cases: Annotated[str, typer.Option(help="stand, gemm (flags preset), or all.")] = "stand",
    samples: options.Samples = 10,
    budget: options.Budget = 60.0,
    json_path: options.JsonPath = None,
    svg_path: options.SvgPath = None,
    commit: options.Commit = "",
    quiet: options.Quiet = False,
) -> None:
    """AG+GEMM and GEMM+RS beside a copy and cuBLAS, chunks of cuBLAS, and Triton; times in us.

    E_overlap is 1 where communication costs nothing beyond the GEMM, 0 where it costs as much as
    before or after it.
    """
    what = options.word(cases, ("stand", "gemm", "all"), "overlap: --cases", "cases")
    if not stand:
        raise options.fail(
            "overlap: between GPUs it is not measured yet; --stand takes host memory for peers"
        )
    output = options.output(samples, budget, json_path, svg_path, quiet, "gpu", commit)
    from importlib.util import find_spec

    if find_spec("torch") is None:
        raise options.fail("overlap: needs PyTorch with CUDA: pip install torch")
    import torch

    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        raise options.fail("overlap: needs a GPU of compute capability 9.0, such as an H100")
    from braid.bench.overlap import jobs
    from braid.bench.overlap.stand import RANKS, Stand
    from braid.probe.publish import Run, measure

    there = Stand()
    run = Run(
        "overlap", torch.cuda.get_device_name(),
        [jobs.job_of(there, case) for case in jobs.select(what)], output,
        {"stand": "host link", "ranks": str(RANKS), "own rank": "0"}, figures=jobs.figures_of,
    )  # fmt: skip
    raise typer.Exit(measure(run))


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(
        epilog="Example: braid bench overlap --stand --json overlap.json. Exit code 0 fine, 1 wrong"
        " numbers or a kernel that gave up, 2 bad input."
    )(overlap)
