"""`braid bench moe`: dispatch and combine between CPUs or GPUs, and what they are measured
against.
"""

import importlib.util
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from braid import launched
from braid.cli import probe_options as options
from braid.cli.checks import as_launched, check_ranks
from braid.launch import launch

if TYPE_CHECKING:
    from braid.bench.moe.routings import Shape
    from braid.probe.publish import Output


def moe(
    ranks: Annotated[
        int, typer.Option("--ranks", "-n", help="Processes to start.", callback=as_launched)
    ] = 2,
    shape: Annotated[
        str, typer.Option(help="deepseek-v3, kimi-k2, qwen3-235b, or tiny.")
    ] = "deepseek-v3",
    tokens: Annotated[str, typer.Option(help="Tokens of each rank.")] = "128,1024",
    routings: Annotated[str, typer.Option(help="uniform, zipf, groups.")] = "uniform",
    gpu: Annotated[
        bool, typer.Option("--gpu", help="On GPUs, one for each rank, beside NCCL.")
    ] = False,
    deepep: Annotated[
        str,
        typer.Option(
            help="With --gpu: DeepEP in the same run, where a package deep_ep is installed that"
            " is not the stand-in: no, normal, or both (low latency too; needs NVSHMEM)."
        ),
    ] = "normal",
    beside_gemm: Annotated[
        bool,
        typer.Option(
            "--beside-gemm",
            help="With --gpu: also low-latency calls of up to 256 tokens in two halves, by hooks,"
            " with a GEMM between them; DeepEP's, too, with --deepep both.",
        ),
    ] = False,
    samples: options.Samples = 20,
    json_path: options.JsonPath = None,
    svg_path: options.SvgPath = None,
    commit: options.Commit = "",
    quiet: options.Quiet = False,
) -> None:
    """Dispatch and combine of tokens among experts. Beside gloo's or NCCL's all_to_all_single.

    Times in us of one dispatch and one combine in bf16; the figures are speed-ups (the other's
    time / that of braid's normal mode): above 1, braid is faster. Needs torch.
    """
    if importlib.util.find_spec("torch") is None:
        raise options.fail("moe: needs PyTorch, which is not installed here: pip install torch")
    from braid.bench.moe.deepep import MODES
    from braid.bench.moe.routings import ROUTINGS, SHAPES

    options.word(shape, tuple(SHAPES), "moe: --shape", "shape")
    options.word(deepep, MODES, "moe: --deepep", "mode")
    chosen = options.words(routings, ROUTINGS, "moe: --routings", "routing")
    counts = _counts(tokens)
    if beside_gemm:
        _check_beside(gpu, counts)
    output = options.output(
        samples, 600.0, json_path, svg_path, quiet, "gpu" if gpu else "cpu", commit
    )
    if not launched.is_rank():
        check_ranks(ranks)
    if gpu:
        options.need_gpus("moe: --gpu", ranks)
    if not launched.is_rank():
        raise typer.Exit(launch([sys.executable, "-m", "braid.cli", *sys.argv[1:]], ranks))
    if gpu:
        raise typer.Exit(_on_gpus(SHAPES[shape], counts, chosen, output, deepep, beside_gemm))
    raise typer.Exit(_on_cpus(SHAPES[shape], counts, chosen, output))


def _counts(tokens: str) -> list[int]:
    """Numbers of tokens, all of them."""
    words = [word.strip() for word in tokens.split(",")]
    if not all(word.isascii() and word.isdigit() and int(word) for word in words):
        raise options.fail(f"moe: --tokens: asked for numbers such as 128,1024, found {tokens!r}")
    return [int(word) for word in words]


def _check_beside(gpu: bool, counts: Sequence[int]) -> None:
    from braid.bench.moe.deepep import MOST_LOW_LATENCY

    if not gpu:
        raise options.fail("moe: --beside-gemm: it is GPUs that are looked at: give --gpu, too")
    if min(counts) > MOST_LOW_LATENCY:
        raise options.fail(
            f"moe: --beside-gemm: asked for {min(counts)} --tokens or more, low-latency calls are"
            f" of {MOST_LOW_LATENCY} at most"
        )


def _on_cpus(
    shape: "Shape", counts: Sequence[int], routings: Sequence[str], output: "Output"
) -> int:
    from braid.bench.interrupt import join
    from braid.bench.moe import contestants, jobs
    from braid.probe.publish import Run, measure

    with join(tune=False, progress=False) as comm:
        leave = contestants.join(comm)
        run = Run(
            "moe", "", jobs.jobs(comm, shape, counts, routings, True), output,
            {"shape": shape.name}, ranks=comm.size, rank=comm.rank, figures=jobs.ratios_of,
        )  # fmt: skip
        code = measure(run)
        leave()
    return code


def _on_gpus(
    shape: "Shape",
    counts: Sequence[int],
    routings: Sequence[str],
    output: "Output",
    deepep_mode: str,
    beside_gemm: bool,
) -> int:
    from braid.bench.no_multicast import forbid_multicast

    forbid_multicast()
    os.environ["NCCL_NVLS_ENABLE"] = "0"
    os.environ["NVSHMEM_DISABLE_NVLS"] = "1"
    import torch

    from braid.bench import own_gpu
    from braid.bench.crew import CommCrew
    from braid.bench.interrupt import join
    from braid.bench.moe import beside, contestants, deepep, gpu
    from braid.probe.publish import Run, measure

    own_gpu.take()
    with join(progress=False) as comm:
        own_gpu.check_apart(CommCrew(comm))
        has_nccl = comm.size > 1
        leave = contestants.join(comm, "nccl") if has_nccl else lambda: None
        other = deepep.enter(comm, deepep_mode, shape, counts)
        jobs = gpu.jobs(comm, shape, counts, routings, has_nccl, other.deepep)
        settings = {"shape": shape.name, "deep_ep": other.said}
        if beside_gemm:
            jobs += beside.jobs(comm, shape, counts, routings, other.deepep)
            settings |= beside.settings()
        run = Run(
            "moe", torch.cuda.get_device_name(), jobs, output, settings,
            ranks=comm.size, rank=comm.rank, versions=other.versions,
            figures=lambda series: gpu.ratios_of(series) | beside.figures_of(series),
        )  # fmt: skip
        code = measure(run)
        if other.deepep is not None:
            other.deepep.close()
        leave()
    return code


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(
        epilog="Example: braid bench moe -n 4 --tokens 128,1024 --json records/moe_4.json. With"
        " --gpu a rank for each GPU. Exit code 0 fine, 1 wrong sums, 2 bad input."
    )(moe)
