"""`braid bench` itself: collectives, on GPUs where there are two, else between CPUs."""

import importlib.util
import sys
from typing import TYPE_CHECKING

import typer

from braid import launched
from braid.bench import cut, gpus
from braid.bench.request import check_root
from braid.cli import (
    bench_engine,
    bench_kv,
    bench_moe,
    bench_nodes,
    bench_overlap,
    bench_weights,
    compare,
    probe_block,
    probe_calls,
    probe_lanes,
    probe_options,
)
from braid.cli import bench_options as options
from braid.cli.checks import (
    NCCL_DTYPES,
    check_budget,
    check_device,
    check_options,
    check_outputs,
    check_ranks,
    fail,
    sizes_of,
    word,
    words,
)
from braid.launch import launch

if TYPE_CHECKING:
    from braid.bench.command import Asked
    from braid.bench.host.session import Settings

app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
probe_lanes.register(app)
probe_calls.register(app)
probe_block.register(app)
bench_engine.register(app)
bench_kv.register(app)
bench_weights.register(app)
bench_overlap.register(app)
bench_moe.register(app)
bench_nodes.register(app)
app.command(
    epilog="Example: braid bench compare old.json new.json --tolerance 5%. Exit code 1: failed."
)(compare.compare)
_MOST_CALLS = 1000  # of a sample, and launches of a graph
_GRACE_S = 30.0  # after Ctrl-C: the case at hand ends, and the record is written


@app.callback(
    invoke_without_command=True,
    epilog="Example: braid bench --ops all_reduce --sizes 1KiB:64MiB:x4 --json new.json."
    " Sizes in KiB, MiB, GiB; times in us; GB/s = 1e9 bytes per second in one direction."
    " Exit code 0 fine, 1 wrong bytes, 2 bad input, 130 after Ctrl-C.",
)
def bench(
    ctx: typer.Context,
    ops: options.Ops = "all",
    sizes_text: options.Sizes = "",
    begin: options.Begin = "",
    end: options.End = "",
    factor: options.Factor = None,
    step: options.Step = "",
    ranks: options.Ranks = 0,
    device: options.Device = "auto",
    suite: options.Suite = "",
    baselines: options.Baselines = "all",
    mscclpp: options.Mscclpp = None,
    variants: options.Variants = "none",
    mode: options.Mode = "auto",
    links: options.Links = "",
    pace: options.Pace = "",
    dtype: options.Dtype = "",
    redop: options.Redop = "sum",
    root: options.Root = None,
    iters: options.Iters = 20,
    calls: options.Calls = 0,
    launches: options.Launches = None,
    warmup: options.Warmup = 2,
    against: options.Against = "",
    check: options.Check = 1,
    time_budget: options.TimeBudget = 0.0,
    timeout: options.Timeout = "",
    tune: options.Tune = "",
    json_path: probe_options.JsonPath = None,
    svg_path: probe_options.SvgPath = None,
    commit: probe_options.Commit = "",
    quiet: options.Quiet = False,
    by_rank: options.ByRank = False,
) -> None:
    """Check every byte of the collectives, then time them against a baseline in the same run.

    Starts ranks itself, or uses those of an enclosing launch (braid run, torchrun, Slurm). The
    commands below measure what lies beneath: pairs, host links, sequences of calls.
    """
    if ctx.invoked_subcommand is not None:
        return
    from braid.bench.command import Asked

    _check_counts(iters=iters, check=check, warmup=warmup)
    check_budget(time_budget)
    check_device(device, "bench: --device")
    redop = word(redop, "op", "bench: --op")
    _check_calls(calls, launches)
    sizes_text = _sizes_text(ctx, sizes_text, begin, end, factor, step)
    asked = Asked(
        device=device,
        suite=suite,
        ops=words(ops, "ops", "bench: --ops"),
        sizes=sizes_of(sizes_text, "bench: --sizes") if sizes_text else [],
        ranks=ranks,
        dtype=NCCL_DTYPES.get(dtype, dtype),
        redop=redop,
        mode=mode,
        baselines=baselines,
        variants=variants,
        samples=iters,
        time_budget_s=time_budget,
        options=_given(links=links, pace=pace, timeout=timeout, tune=tune),
        json_path=json_path,
        svg_path=svg_path,
        commit=commit,
        quiet=quiet,
        host_only=[f"--{name}" for name in _given(links=links, pace=pace, against=against)],
        gpu_only=_typed(ctx, "mode", "baselines", "variants"),
        mscclpp=mscclpp,
        by_rank=by_rank,
        calls=calls,
        launches=launches,
        root=root,
        against=against,
        warm_up_calls=warmup,
        checks=check,
    )
    raise typer.Exit(_run(asked))


def _run(asked: "Asked") -> int:
    """On GPUs where there are enough and nothing speaks against it. The exit code."""
    _check_root(asked)
    check_outputs(asked.json_path, asked.svg_path)
    if not launched.is_rank():
        check_options(asked.options)
    code = _on_gpus(asked)
    return _on_cpus(asked) if code is None else code


def _given(**options: str) -> dict[str, str]:
    """Those that were written."""
    return {name: text for name, text in options.items() if text}


def _typed(ctx: typer.Context, *names: str) -> tuple[str, ...]:
    """Those of these options that are on the command line."""
    sources = {name: ctx.get_parameter_source(name) for name in names}
    given = (name for name, source in sources.items() if source and source.name != "DEFAULT")
    return tuple(f"--{name}" for name in given)


def _on_gpus(asked: "Asked") -> int | None:
    """The exit code; None where the run is for CPUs."""
    from braid.bench.command import Refused, check_words, gpus_to_use, run

    try:
        check_words(asked)
        count = gpus_to_use(asked)
        return run(asked, count) if count else None
    except Refused as refused:
        fail(f"bench: {refused}")


def _on_cpus(asked: "Asked") -> int:
    """Starts the ranks, or is one of them. The exit code."""
    if asked.launches:
        fail("bench: --cudagraph: graphs are for GPUs; leave it out between CPUs")
    if asked.gpu_only:
        fail(f"bench: {asked.gpu_only[0]}: this is for GPUs; leave it out between CPUs")
    from braid.bench.host.session import Settings, run_rank
    from braid.cases.host import measured_bytes

    ranks = asked.ranks or 4
    check_ranks(ranks)
    if not launched.is_rank():
        check_root(asked.root, ranks)
    if asked.against:
        _check_against(asked.against)
    settings = Settings.of(asked, word(asked.dtype or "float32", "dtype", "bench: --dtype"))
    if launched.is_rank():
        return run_rank(settings)
    _check_memory(settings, ranks)
    if (why := probe_options.why_cpus(asked.device)) and not asked.host_only:
        print(why, file=sys.stderr, flush=True)
    cut.say(
        (op, size, measured_bytes(op, size, settings.dtype, ranks))
        for op in settings.ops
        for size in settings.sizes
    )
    command = [sys.executable, "-m", "braid.cli", *sys.argv[1:]]
    with gpus.starting_ranks():
        return launch(command, ranks, grace_s=_GRACE_S)


def _check_memory(settings: "Settings", ranks: int) -> None:
    """Before ranks start: each would end with a trace of its own."""
    from braid.bench.host import memory

    for op in settings.ops:
        for size in settings.sizes:
            if why := memory.why_not(op, size, settings.dtype, ranks):
                fail(f"bench: --sizes: {why}")


def _sizes_text(
    ctx: typer.Context, sizes_text: str, begin: str, end: str, factor: int | None, step: str
) -> str:
    """--sizes, or nccl-tests' words for a range; "" where neither is said."""
    if not sizes_text and _typed(ctx, "sizes_text"):
        fail("bench: --sizes: '' is no size; without --sizes the usual ones are measured")
    if sizes_text and (begin or end or step):
        fail("bench: --sizes and -b, -e say the same; write one of them")
    return sizes_text or _range_text(begin, end, factor, step)


def _range_text(begin: str, end: str, factor: int | None, step: str = "") -> str:
    """nccl-tests' -b -e -f -i as our ranges are written."""
    if step and factor is not None:
        fail("bench: -i and -f both say the next size; write one of them")
    if not begin and not end:
        if step:
            fail("bench: -i: there is no range; write -b and -e")
        return ""
    begin = begin or "32MiB"  # nccl-tests' own
    by = f"+{step}" if step else f"x{2 if factor is None else factor}"
    return f"{begin}:{end or begin}:{by}"


def _check_counts(**counts: int) -> None:
    for name, count in counts.items():
        if count < 1:
            fail(f"bench: --{name}: asked for {count}, at least 1 is needed")


def _check_calls(calls: int, launches: int | None) -> None:
    for name, count in (("calls", calls), ("cudagraph", launches or 0)):
        if not 0 <= count <= _MOST_CALLS:
            fail(f"bench: --{name}: asked for {count}, it must be from 0 to {_MOST_CALLS}")


def _check_root(asked: "Asked") -> None:
    if asked.root is not None and "broadcast" not in asked.ops:
        fail("bench: --root: only broadcast has one, and --ops leaves it out")


def _check_against(against: str) -> None:
    from braid.bench.host.session import AGAINST

    if against not in AGAINST:
        fail(f"bench: --against: '{against}' is no baseline; braid has {', '.join(AGAINST)}")
    if against == "gloo" and importlib.util.find_spec("torch") is None:
        fail("bench: --against gloo needs torch, which is not installed here")
