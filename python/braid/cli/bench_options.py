"""The options of `braid bench` itself, in the order in which its help lists them."""

from pathlib import Path
from typing import Annotated

import typer

from braid.cli.checks import as_launched

Ops = Annotated[str, typer.Option(help="Comma list of operations, or all.")]
Sizes = Annotated[
    str,
    typer.Option(
        "--sizes",
        help="Bytes: 64MiB, or a range 1KiB:64MiB:x4. On GPUs of a rank's own part, between"
        " CPUs in all, as nccl-tests counts.",
    ),
]
Begin = Annotated[str, typer.Option("-b", help="As nccl-tests: bytes to begin at.")]
End = Annotated[str, typer.Option("-e", help="As nccl-tests: bytes to end at.")]
Factor = Annotated[
    int | None, typer.Option("-f", help="As nccl-tests: factor between sizes; 2 if not said.")
]
Step = Annotated[str, typer.Option("-i", help="As nccl-tests: bytes from size to size.")]
Ranks = Annotated[
    int,
    typer.Option(
        "--ranks", "-n", "-g", help="Processes: 4, or one for every GPU.", callback=as_launched
    ),
]
Device = Annotated[str, typer.Option(help="auto: GPUs if there are two; gpu, cpu.")]
Suite = Annotated[str, typer.Option(help="GPUs: flexlink, every figure of the paper.")]
Baselines = Annotated[str, typer.Option(help="GPUs: a list of nccl, nccl-best, symm; all, none.")]
Mscclpp = Annotated[
    Path | None, typer.Option(help="GPUs: MSCCL++'s libmscclpp_nccl.so, one more baseline.")
]
Variants = Annotated[
    str, typer.Option(help="GPUs, braid too: a list of unregistered, links; all, none.")
]
Mode = Annotated[str, typer.Option(help="GPUs: eager, graph, both; auto: graph up to 4 MiB.")]
Links = Annotated[str, typer.Option(help="Links to use: auto, or shm,staged,rdma.")]
Pace = Annotated[str, typer.Option(help="Slow links down: shm=400MB/s,staged=200MB/s@50us.")]
Dtype = Annotated[
    str, typer.Option("--dtype", "-d", help="float32, or on GPUs bfloat16, if not said.")
]
Redop = Annotated[str, typer.Option("--op", "-o", help="Reduction: sum, prod, min, max, avg.")]
Root = Annotated[
    int | None,
    typer.Option("--root", "-r", help="Of broadcast, among the processes; the last if unsaid."),
]
Iters = Annotated[int, typer.Option(help="Samples per case, at most.")]
Calls = Annotated[
    int, typer.Option("--calls", "-m", help="Calls per sample; 0: as many as last 2 ms.")
]
Launches = Annotated[
    int | None,
    typer.Option("--cudagraph", "-G", help="GPUs: launches of a graph of -m calls; 0: no graph."),
]
Warmup = Annotated[int, typer.Option("--warmup", "-w", help="Calls before the first sample.")]
Against = Annotated[
    str, typer.Option(help="Baseline in the same run: best-link, fixed-shares, gloo, none.")
]
Check = Annotated[int, typer.Option("--check", "-c", help="Checked calls per case, before timing.")]
TimeBudget = Annotated[float, typer.Option(help="Seconds for all cases; 0: 60 or more.")]
Timeout = Annotated[str, typer.Option(help="Deadline of every wait, such as 30s.")]
Tune = Annotated[str, typer.Option(help="Measure the links at start: auto, off, force.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No tables.")]
ByRank = Annotated[
    bool, typer.Option("--by-rank", help="Print every rank's times, even if none is late.")
]
