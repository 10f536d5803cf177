"""`braid bench overlap`: GEMMs that communicate, between GPUs, or beside host memory for peers."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from braid import launched
from braid.bench.no_multicast import forbid_multicast
from braid.bench.overlap.models import MODELS
from braid.cli import probe_options as options
from braid.cli.checks import as_launched, check_ranks
from braid.launch import launch

if TYPE_CHECKING:
    from braid.probe.publish import Output


def overlap(
    ranks: Annotated[
        int, typer.Option("--ranks", "-n", help="GPUs, one rank each.", callback=as_launched)
    ] = 2,
    models: Annotated[str, typer.Option(help="Layers of gpt-3, llama-70b.")] = "gpt-3,llama-70b",
    rows: Annotated[str, typer.Option(help="Rows of all ranks together.")] = (
        "64,512,1024,2048,4096,8192"
    ),
    graphs: Annotated[bool, typer.Option("--graphs", help="Replay calls from graphs.")] = False,
    stand: Annotated[
        bool, typer.Option("--stand", help="Peers are host memory: what one GPU can do.")
    ] = False,
    cases: Annotated[
        str, typer.Option(help="Of the stand: stand, gemm (flags preset), or all.")
    ] = "stand",
    samples: options.Samples = 10,
    budget: options.Budget = 60.0,
    json_path: options.JsonPath = None,
    svg_path: options.SvgPath = None,
    commit: options.Commit = "",
    quiet: options.Quiet = False,
) -> None:
    """GEMMs that communicate, of tensor-parallel layers. AG+GEMM, GEMM+RS and GEMM+AR, beside NCCL
    or braid and cuBLAS in turn and torch's fused operations; with --stand beside a copy and cuBLAS,
    chunks of cuBLAS, and Triton. Times in us.

    E_overlap is 1 where communication costs nothing beyond the GEMM, 0 where it costs as much as
    before or after it.
    """
    what = options.word(cases, ("stand", "gemm", "all"), "overlap: --cases", "cases")
    output = options.output(samples, budget, json_path, svg_path, quiet, "gpu", commit)
    counts = options.sizes_of(rows, "overlap: --rows")
    chosen = options.words(models, tuple(MODELS), "overlap: --models", "model")
    if not stand:
        ranks = launched.size() if launched.is_rank() else ranks
        check_ranks(ranks)
        uneven = [m for m in counts if m % ranks]
        if uneven:
            raise options.fail(f"overlap: --rows: {uneven[0]} do not divide among {ranks} ranks")
    forbid_multicast()
    _need_hopper()
    if stand:
        raise typer.Exit(_on_the_stand(what, output))
    options.need_gpus("overlap", ranks, "; --stand takes host memory for peers")
    if not launched.is_rank():
        raise typer.Exit(launch([sys.executable, "-m", "braid.cli", *sys.argv[1:]], ranks))
    raise typer.Exit(_between(chosen, counts, graphs, output))


def _need_hopper() -> None:
    from importlib.util import find_spec

    if find_spec("torch") is None:
        raise options.fail("overlap: needs PyTorch with CUDA: pip install torch")
    import torch

    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        raise options.fail("overlap: needs a GPU of compute capability 9.0, such as an H100")


def _on_the_stand(what: str, output: "Output") -> int:
    import torch

    from braid.bench.overlap import jobs
    from braid.bench.overlap.stand import RANKS, Stand
    from braid.probe.publish import Run, measure

    there = Stand()
    run = Run(
        "overlap", torch.cuda.get_device_name(),
        [jobs.job_of(there, case) for case in jobs.select(what)], output,
        {"stand": "host link", "ranks": str(RANKS), "own rank": "0"}, figures=jobs.figures_of,
    )  # fmt: skip
    return measure(run)


def _between(models: list[str], rows: list[int], graphs: bool, output: "Output") -> int:
    import numpy as np
    import torch

    from braid.bench import own_gpu
    from braid.bench.crew import CommCrew
    from braid.bench.interrupt import join
    from braid.bench.overlap import between, between_jobs
    from braid.probe.publish import Run, measure

    own_gpu.take()
    with join(progress=False) as comm:
        own_gpu.check_apart(CommCrew(comm))
        between.join_nccl(comm)
        run = Run(
            "overlap", torch.cuda.get_device_name(),
            [
                between_jobs.job_of(comm, layer, graphs)
                for layer in between.layers(models, rows, comm.size)
            ],
            output,
            {"calls": "graphs" if graphs else "eager",
             "nccl": ".".join(map(str, torch.cuda.nccl.version()))},
            ranks=comm.size, rank=comm.rank, figures=between_jobs.figures_of,
        )  # fmt: skip
        code = measure(run, lambda came: bool(comm.all_reduce(np.array([came], "f4"), "max")[0]))
        torch.distributed.destroy_process_group()
    return code


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(
        epilog="Example: braid bench overlap -n 2 --json overlap_tp2.json; braid bench overlap"
        " --stand. Exit code 0 fine, 1 wrong numbers or a kernel that gave up, 2 bad input."
    )(overlap)
