"""`braid bench nodes`: collectives over several nodes, on the ranks of an enclosing launch."""

from typing import Annotated

import typer

from braid import launched
from braid.cli import probe_options as options
from braid.cli.checks import check_device
from braid.errors import InvalidArgument

_OPS = ("all_gather", "reduce_scatter", "all_reduce")
_DTYPES = ("bfloat16", "float16", "float32", "float64", "int32", "int64")


def nodes(
    ops: Annotated[
        str, typer.Option(help="A list of all_gather, reduce_scatter, all_reduce.")
    ] = ",".join(_OPS),
    sizes_text: Annotated[
        str, typer.Option("--sizes", help="Bytes in all, as nccl-tests counts.")
    ] = "1MiB:1GiB:x8",
    device: Annotated[str, typer.Option(help="auto: GPUs where there are some; gpu, cpu.")] = (
        "auto"
    ),
    dtype: options.Dtype = "",
    against: Annotated[str, typer.Option(help="Between CPUs: gloo, or none.")] = "gloo",
    samples: options.Samples = 20,
    budget: options.Budget = 300.0,
    json_path: options.JsonPath = None,
    commit: options.Commit = "",
    quiet: options.Quiet = False,
) -> None:
    """Collectives over several nodes, beside NCCL or Gloo. Times in us.

    On GPUs NCCL whole beside braid in its place, on one communicator; between CPUs beside Gloo.
    Every byte is checked before anything is timed. Starts no ranks: srun, torchrun or mpirun does,
    on all nodes (examples/launch/bench_nodes.sbatch).
    """
    if not launched.has_launcher():
        raise options.fail("nodes: starts no ranks; start it on all nodes: srun, torchrun, mpirun")
    check_device(device, "bench nodes: --device")
    output = options.output(samples, budget, json_path, None, quiet, "cpu", commit)
    chosen = options.words(ops, _OPS, "nodes: --ops", "operation")
    sizes = options.sizes_of(sizes_text, "nodes: --sizes")
    is_on_gpus = device == "gpu" or (device == "auto" and _has_gpus())
    kind = dtype or ("bfloat16" if is_on_gpus else "float32")
    options.words(kind, _DTYPES, "nodes: --dtype", "type")
    if against not in ("gloo", "none"):
        raise InvalidArgument(f"bench nodes: --against: asked for {against}, there is gloo, none")
    if is_on_gpus:
        from braid.bench.nodes import gpus

        asked = gpus.Asked(
            chosen, sizes, kind, output.samples, output.budget_s, json_path, commit, quiet
        )
        raise typer.Exit(gpus.run_rank(asked))
    from braid.bench.host.measure import Effort
    from braid.bench.host.session import Settings
    from braid.bench.nodes import cpus

    settings = Settings(
        ops=chosen, sizes=sizes, dtype=kind, redop="sum", against=against,
        effort=Effort(output.samples, warm_up_calls=1, checks=1), time_budget_s=output.budget_s,
        options={}, json_path=json_path, svg_path=None, quiet=quiet, commit=commit,
    )  # fmt: skip
    raise typer.Exit(cpus.run_rank(settings))


def _has_gpus() -> bool:
    from braid.bench import gpus

    return gpus.find().count > 0


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(
        epilog="Example: braid bench nodes --sizes 1MiB,64MiB --json nodes.json, by srun or "
        "torchrun. Exit code 0 fine, 1 wrong bytes, 2 bad input."
    )(nodes)
