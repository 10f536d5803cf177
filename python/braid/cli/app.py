"""The command line: arguments in, exit codes out.

The work is in the other files of this folder.
"""

import importlib.util
import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

import braid
from braid.cli import compare, plan, probe_calls, probe_lanes, report, sizes, topo
from braid.cli.launch import command_for, launch

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.add_typer(topo.app, name="topo")
app.add_typer(plan.app, name="plan")
bench_app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
app.add_typer(bench_app, name="bench")
probe_lanes.register(bench_app)
probe_calls.register(bench_app)
bench_app.command(
    epilog="Example: braid bench compare old.json new.json --tolerance 5%. Exit code 1: failed."
)(compare.compare)
_MAX_RANKS = 64

Ranks = Annotated[int, typer.Option("--ranks", "-n", help="Processes to start on this machine.")]


def fail(message: str) -> NoReturn:
    """One line on standard error, exit code 2."""
    print(f"braid: {message}", file=sys.stderr)
    raise typer.Exit(2)


def _check_ranks(ranks: int) -> None:
    if not 1 <= ranks <= _MAX_RANKS:
        fail(f"--ranks: asked for {ranks}, braid takes 1 to {_MAX_RANKS}")


def _inside_launch() -> bool:
    return "RANK" in os.environ or "SLURM_PROCID" in os.environ


@app.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def run(
    target: Annotated[
        list[str], typer.Argument(help="script.py, or a program, and its arguments.")
    ],
    ranks: Ranks = 1,
    module: Annotated[bool, typer.Option("-m", help="TARGET is a Python module.")] = False,
    grace: Annotated[float, typer.Option(help="Seconds that ranks get after one failed.")] = 5.0,
) -> None:
    """Start ranks of a program on this machine: braid run -n 4 script.py ARGS."""
    _check_ranks(ranks)
    if target[0].endswith(".py") and not module and not Path(target[0]).is_file():
        fail(f"run: there is no file {target[0]}")
    try:
        code = launch(command_for(target, module=module), ranks, grace_s=grace)
    except OSError as error:
        fail(f"run: {target[0]} cannot be started: {error.strerror}")
    raise typer.Exit(code)


@bench_app.callback(
    invoke_without_command=True,
    epilog="Example: braid bench --ops all_reduce --sizes 1KiB:64MiB:x4 --json new.json."
    " Sizes in KiB, MiB, GiB; times in us; GB/s = 1e9 bytes per second in one direction.",
)
def bench(
    ctx: typer.Context,
    ops: Annotated[str, typer.Option(help="Comma list of operations, or all.")] = "all",
    sizes_text: Annotated[
        str, typer.Option("--sizes", help="64MiB, or a range 1KiB:64MiB:x4.")
    ] = "",
    ranks: Annotated[
        int, typer.Option("--ranks", "-n", help="Processes: 4, or one for every GPU.")
    ] = 0,
    device: Annotated[str, typer.Option(help="auto: GPUs if there are two; gpu, cpu.")] = "auto",
    suite: Annotated[str, typer.Option(help="GPUs: flexlink, every figure of the paper.")] = "",
    baselines: Annotated[
        str, typer.Option(help="GPUs: a list of nccl, nccl-best, symm; all, none.")
    ] = "all",
    variants: Annotated[
        str, typer.Option(help="GPUs, braid too: a list of unregistered, links; all, none.")
    ] = "none",
    mode: Annotated[
        str, typer.Option(help="GPUs: eager, graph, both; auto: graph up to 4 MiB.")
    ] = "auto",
    links: Annotated[str, typer.Option(help="Links to use: auto, or shm,staged,rdma.")] = "",
    pace: Annotated[
        str, typer.Option(help="Slow links down: shm=400MB/s,staged=200MB/s@50us.")
    ] = "",
    dtype: Annotated[str, typer.Option(help="float32, or on GPUs bfloat16, if not said.")] = "",
    redop: Annotated[
        str, typer.Option("--op", help="Reduction: sum, prod, min, max, avg.")
    ] = "sum",
    iters: Annotated[int, typer.Option(help="Samples per case, at most.")] = 20,
    warmup: Annotated[int, typer.Option(help="Calls before the first sample.")] = 2,
    against: Annotated[
        str, typer.Option(help="Baseline in the same run: best-link, fixed-shares, gloo, none.")
    ] = "",
    check: Annotated[int, typer.Option(help="Checked calls per case, before timing.")] = 1,
    time_budget: Annotated[float, typer.Option(help="Seconds for all cases; 0: 60 or more.")] = 0.0,
    timeout: Annotated[str, typer.Option(help="Deadline of every wait, such as 30s.")] = "",
    tune: Annotated[str, typer.Option(help="Measure the links at start: auto, off, force.")] = "",
    json_path: Annotated[Path | None, typer.Option("--json", help="Write the record here.")] = None,
    svg_path: Annotated[Path | None, typer.Option("--svg", help="Draw the record here.")] = None,
    commit: Annotated[str, typer.Option(help="GPUs: for a record of a tree without git.")] = "",
    quiet: Annotated[bool, typer.Option("--quiet", help="GPUs: no tables.")] = False,
) -> None:
    """Check every byte of the collectives, then time them against a baseline in the same run.

    Starts ranks itself, or uses those of an enclosing launch (braid run, torchrun, Slurm). The
    commands below measure what lies beneath: pairs, host links, sequences of calls.
    """
    if ctx.invoked_subcommand is not None:
        return
    from braid.bench.command import Asked, Refused, gpus_to_use
    from braid.bench.command import run as run_on_gpus
    from braid.cli.bench import Settings, run_rank
    from braid.cli.measure import Effort

    _check_counts(iters=iters, check=check, warmup=warmup)
    chosen = {"links": links, "pace": pace, "timeout": timeout, "tune": tune}
    asked = Asked(
        device=device,
        suite=suite,
        ops=_words(ops, "ops"),
        sizes=_sizes(sizes_text) if sizes_text else [],
        ranks=ranks,
        dtype=dtype,
        redop=redop,
        mode=mode,
        baselines=baselines,
        variants=variants,
        samples=iters,
        time_budget_s=time_budget,
        options={name: text for name, text in chosen.items() if text},
        json_path=json_path,
        svg_path=svg_path,
        commit=commit,
        quiet=quiet,
        host_only=[
            name
            for name, text in (("--links", links), ("--pace", pace), ("--against", against))
            if text
        ],
    )
    try:
        count = gpus_to_use(asked)
        if count:
            raise typer.Exit(run_on_gpus(asked, count))
    except Refused as refused:
        fail(f"bench: {refused}")
    ranks = ranks or 4
    against = against or "best-link"
    _check_ranks(ranks)
    _check_against(against)
    settings = Settings(
        ops=_words(ops, "ops"),
        sizes=_sizes(sizes_text or "64MiB"),
        dtype=_words(dtype or "float32", "dtype")[0],
        redop=_words(redop, "op")[0],
        against=against,
        effort=Effort(samples=iters, warm_up_calls=warmup, checks=check),
        time_budget_s=time_budget or 60.0,
        options={name: text for name, text in chosen.items() if text},
        json_path=json_path,
        svg_path=svg_path,
    )
    if _inside_launch():
        raise typer.Exit(run_rank(settings))
    raise typer.Exit(launch([sys.executable, "-m", "braid.cli", *sys.argv[1:]], ranks))


def _words(text: str, option: str) -> list[str]:
    from braid.cli.cases import DTYPES, OPS, REDOPS

    allowed = {"ops": OPS, "dtype": DTYPES, "op": REDOPS}[option]
    try:
        return sizes.parse_words(text, allowed, option)
    except ValueError as error:
        fail(f"bench: --{option}: {error}")


def _sizes(text: str) -> list[int]:
    try:
        return sizes.parse_sizes(text)
    except ValueError as error:
        fail(f"bench: --sizes: {error}")


def _check_counts(**counts: int) -> None:
    for name, count in counts.items():
        if count < 1:
            fail(f"bench: --{name}: asked for {count}, at least 1 is needed")


def _check_against(against: str) -> None:
    from braid.cli.bench import AGAINST

    if against not in AGAINST:
        fail(f"bench: --against: '{against}' is no baseline; braid has {', '.join(AGAINST)}")
    if against == "gloo" and importlib.util.find_spec("torch") is None:
        fail("bench: --against gloo needs torch, which is not installed here")


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the record and the plot.")] = Path(
        "build/demo"
    ),
    ranks: Annotated[
        int, typer.Option("--ranks", "-n", help="Processes: 4, or one for every GPU.")
    ] = 0,
    size: Annotated[str, typer.Option(help="Bytes: 64MiB, on GPUs 256MiB.")] = "",
    time_budget: Annotated[float, typer.Option(help="Seconds for measuring, roughly.")] = 35.0,
    device: Annotated[str, typer.Option(help="auto: GPUs if there are two; cpu.")] = "auto",
) -> None:
    """On GPUs: five operations against the CPU's bytes, then NCCL's times. Between CPUs: five
    operations over three paced links against the best one, then a training.

    About a minute.
    """
    from braid.cli import demo as story

    _check_ranks(ranks or 4)
    if size:
        _sizes(size)
    raise typer.Exit(story.run(out, ranks, size, time_budget, device))


@app.command()
def explain(
    op: Annotated[str, typer.Argument(help="all_gather, all_reduce, ...")],
    size: Annotated[str, typer.Argument(help="Bytes, such as 64MiB.")],
    ranks: Ranks = 4,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say how a call would be cut over the links of this machine."""
    nbytes = _sizes(size)[0]
    _words(op, "ops")
    if not _inside_launch():
        raise typer.Exit(launch([sys.executable, "-m", "braid.cli", *sys.argv[1:]], ranks))
    import json

    with braid.init() as comm:
        explanation = comm.explain(op, nbytes)
        if comm.rank == 0:
            print(json.dumps(explanation.json, indent=1) if as_json else explanation)
        comm.barrier()


@app.command()
def options() -> None:
    """List every BRAID_ option: type, default, meaning."""
    from braid import _braid

    for name, kind, default, text in _braid.options():
        print(f"{name}  {kind}, default {default or 'empty'}\n    {text}")


@app.command()
def nccl_env() -> None:
    """Print the line that puts braid in NCCL's place: env $(braid nccl-env) torchrun train.py."""
    from braid.cli import nccl

    path = nccl.library()
    if path is None:
        fail(f"nccl-env: {nccl.FILE} is not beside the package")
    print(f"LD_PRELOAD={nccl.preload(path)}")


@app.command()
def nccl_check() -> None:
    """Say what the drop-in for NCCL finds here, and try it on the GPUs: half a minute."""
    from braid.cli import nccl

    raise typer.Exit(nccl.check())


app.command(epilog=report.EPILOG)(report.report)


@app.callback(invoke_without_command=True)
def top(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """braid: collectives over every link of the machine at once."""
    if version:
        print(f"braid {braid.__version__}")
        raise typer.Exit(0)


def main() -> None:
    """The entry point: braid's own errors become one line and exit code 1 or 2."""
    who = f"braid: rank {os.environ['RANK']}" if "RANK" in os.environ else "braid"
    try:
        app(prog_name="braid")
    except braid.InvalidArgument as error:
        print(f"{who}: {error}", file=sys.stderr)
        sys.exit(2)
    except braid.Error as error:
        print(f"{who}: {type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(1)
