"""`braid bench weights`: a step's weights from trainers to workers."""

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from braid.cli import probe_options as options
from braid.errors import InvalidArgument

if TYPE_CHECKING:
    from braid.probe.publish import Output

_WAYS = ("local", "tcp", "net", "rails")


def weights(
    trainers: Annotated[
        int, typer.Option(help="Trainer processes, which hold rows.", min=1, max=64)
    ] = 4,
    workers: Annotated[
        int, typer.Option(help="Worker processes, which hold rows and columns.", min=1, max=64)
    ] = 2,
    total: Annotated[str, typer.Option(help="Bytes of the model.")] = "256MiB",
    tensors: Annotated[int, typer.Option(help="Parameters that it has.", min=2, max=4096)] = 16,
    ways: Annotated[
        str,
        typer.Option(
            help="local (one host, no NIC), tcp, net of libfabric; rails: two hosts, needs root."
        ),
    ] = "local,tcp",
    device: Annotated[
        str,
        typer.Option(
            help="cpu; gpu: tensors on GPUs, one for each process, trainers first, or shared."
        ),
    ] = "cpu",
    samples: options.Samples = 10,
    budget: options.Budget = 60.0,
    json_path: options.JsonPath = None,
    svg_path: options.SvgPath = None,
    commit: options.Commit = "",
    quiet: options.Quiet = False,
) -> None:
    """A step of weights, from trainers to workers. They cut the parameters differently.

    Times in us, GB/s; the figures are the time of as many bytes in plain writes by the step's; of
    GPUs that of the driver's copies.
    """
    output = options.output(samples, budget, json_path, svg_path, quiet, "cpu", commit)
    if options.word(device, ("cpu", "gpu"), "weights: --device", "device") == "gpu":
        raise typer.Exit(_between_gpus(trainers, workers, total, tensors, output))
    chosen = options.words(ways, _WAYS, "weights: --ways", "way")
    from braid.bench.engine import network
    from braid.bench.weights import jobs
    from braid.probe.publish import Run, measure

    if jobs.RAILS in chosen and (why := network.why_not()):
        raise InvalidArgument(f"bench weights: rails: {why}")
    shape = jobs.Shape(trainers, workers, tensors)
    made = _made(total, tensors)
    run = Run(
        "weights", "", [jobs.job(shape, way, made) for way in chosen], output,
        {"trainers": str(trainers), "workers": str(workers), "tensors": str(tensors)},
        figures=jobs.ratios_of,
    )  # fmt: skip
    raise typer.Exit(measure(run))


def _made(total: str, tensors: int) -> int:
    """Bytes of the tensors, about as many as were asked for."""
    from braid.bench.weights.peer import shapes_of

    nbytes = options.size(total, "weights: --total")
    made = sum(2 * rows * columns for rows, columns in shapes_of(nbytes, tensors).values())
    if made > nbytes:
        raise options.fail(f"weights: --total: {tensors} tensors take at least {made} B")
    return made


def _between_gpus(trainers: int, workers: int, total: str, tensors: int, output: "Output") -> int:
    """The exit code."""
    made = _made(total, tensors)
    found = options.gpus("gpu", 1)
    import torch

    from braid.bench.weights import jobs
    from braid.probe.publish import Run, measure

    shape = jobs.Shape(trainers, workers, tensors, gpus=min(found, trainers + workers))
    settings = {"trainers": trainers, "workers": workers, "tensors": tensors, "gpus": shape.gpus}
    return measure(
        Run(
            "weights", torch.cuda.get_device_name(0), [jobs.gpu_job(shape, made)], output,
            {name: str(value) for name, value in settings.items()},
            figures=partial(jobs.gpu_ratios_of, shape),
        )
    )  # fmt: skip


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(
        epilog="Example: braid bench weights --trainers 4 --workers 2 --total 1GiB --ways local. "
        "Exit code 0 fine, 1 wrong or lost, 2 bad input."
    )(weights)
