"""`braid plan transfer`, `collective`, `buckets`, `hw`, `models`."""

from typing import Annotated

import typer

from braid import sizes
from braid.cli.checks import our_op
from braid.cli.plan import options
from braid.plan import catalogue, collective, models, transfer, work
from braid.plan.basis import Basis, Quantity
from braid.plan.formulas import training
from braid.plan.hardware import Hardware
from braid.plan.model import Model
from braid.plan.predict import Request
from braid.plan.show import show
from braid.plan.wrong import PlanError


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command("transfer")(send)
    app.command("collective")(one_collective)
    for command in (buckets, hw, list_models):
        app.command({"list_models": "models"}.get(command.__name__))(command)


def send(
    size: Annotated[str, typer.Option(help="Bytes: 64MiB, or 320GB for powers of 1000.")] = "",
    params: Annotated[str, typer.Option(help="Parameters, such as 80B, instead of --size.")] = "",
    model: Annotated[str, typer.Option(help="A model's weights, instead of --size.")] = "",
    element_bytes: Annotated[float, typer.Option(help="Bytes per parameter.")] = 2,
    gbit: Annotated[float, typer.Option(help="Rate of one NIC or lane in Gbit/s.")] = 0.0,
    count: Annotated[int, typer.Option(help="NICs or lanes that work together.")] = 1,
    hw: Annotated[str, typer.Option("--hw", help="A GPU's path instead of --gbit.")] = "",
    path: options.PathName = "auto",
    as_json: options.AsJson = False,
) -> None:
    """Time to send something once. At the specified rate, and at the usual 80 % of it.

    GB/s = 1e9 bytes per second and direction; 8 Gbit/s are 1 GB/s.

    Example: braid plan transfer --params 80B --element-bytes 4 --gbit 200
    """
    if bool(gbit) == bool(hw):
        raise PlanError("transfer: give --gbit or --hw, one of them")
    if hw and count != 1:
        raise PlanError("transfer: --count says nothing with --hw, whose path is one; give --gbit")
    pipe = (
        transfer.over_path(options.machine(hw, None, "nccl").path(path))
        if hw
        else transfer.over_nics(gbit, count)
    )
    shape = models.find(model) if model else None
    nbytes = _bytes(size, params, shape, element_bytes)
    inputs = {"bytes": nbytes.value, "gbit": gbit, "count": count, "hardware": hw or None}
    answer = transfer.report(nbytes, pipe, inputs)
    if shape:
        answer.about(shape)
    show(answer, as_json)


def _bytes(size: str, params: str, shape: Model | None, element_bytes: float) -> Quantity:
    if sum(map(bool, (size, params, shape))) != 1:
        raise PlanError("transfer: give --size, --params or --model, one of them")
    if shape:
        return shape.counted(training.weight_bytes(shape.parameters, element_bytes), "B")
    if size:
        return Quantity(options.parse_bytes(size, "--size"), "B", Basis.EXACT, "")
    count = options.parse_count(params, "--params")
    return Quantity(training.weight_bytes(count, element_bytes), "B", Basis.EXACT, "")


def one_collective(
    op: Annotated[str, typer.Argument(help="all_reduce, all_gather, reduce_scatter, ...")],
    size: Annotated[str, typer.Argument(help="Bytes as nccl-tests counts them: 64MiB.")],
    hw: options.HardwareName,
    ranks: Annotated[int, typer.Option("--ranks", "-n", help="GPUs per node.")],
    nodes: options.Nodes = 1,
    network: options.NetworkName = "",
    nic_gbit: options.NicGbit = 0.0,
    nic_per: options.NicPer = "",
    path: options.PathName = "auto",
    algorithm: Annotated[
        str,
        typer.Option(help="ring, tree, direct, nvls; over nodes also sharp; all, auto."),
    ] = "all",
    record: options.RecordFiles = None,
    who: options.Who = "nccl",
    as_json: options.AsJson = False,
) -> None:
    """One collective: wire bytes, steps and times by algorithm.

    SIZE is the buffer for all_reduce and broadcast, the sum over the ranks for the others.
    Rates in GB/s = 1e9 bytes per second and direction.

    Example: braid plan collective all_reduce 64MiB -n 8 --hw h200-nvlink4

    Example: braid plan collective all_gather 1GiB -n 8 --hw h200-nvlink4 --nodes 4
    --network ib-ndr-8x400
    """
    machine = options.machine(hw, record, who)
    op = our_op(op)
    request = Request(op, options.parse_bytes(size, "size"), ranks, nodes)
    request.check()
    _check_ranks(ranks, machine)
    way = machine.path(path, ranks, op)
    nics = options.nics(network, nic_gbit, nic_per, nodes)
    every = collective.algorithms_for(request, way, nics)
    algorithms = every if algorithm == "all" else [algorithm]
    answer = collective.report(request, way, nics, algorithms)
    answer.warnings += machine.apart(ranks, op)
    show(answer, as_json)


def _check_ranks(ranks: int, machine: Hardware) -> None:
    if ranks > machine.gpus_per_node:
        raise PlanError(f"--ranks {ranks}: {machine.name} has {machine.gpus_per_node} per node")


def buckets(
    total: Annotated[str, typer.Option(help="All bytes, such as 8GB.")],
    hw: options.HardwareName,
    ranks: Annotated[int, typer.Option("--ranks", "-n", help="GPUs.")],
    bucket_sizes: Annotated[
        str, typer.Option("--sizes", help="Bytes of one all-reduce: a list.")
    ] = ("4MiB,32MiB,512MiB,16GiB"),
    path: options.PathName = "auto",
    record: options.RecordFiles = None,
    who: options.Who = "nccl",
    as_json: options.AsJson = False,
) -> None:
    """The same bytes in all-reduces of different sizes. What many small messages cost.

    Example: braid plan buckets --total 8GB -n 8 --hw a100-nvlink3
    """
    try:
        wanted = sizes.parse_sizes(bucket_sizes)
    except ValueError as error:
        raise PlanError(f"--sizes: {error}") from None
    machine = options.machine(hw, record, who)
    _check_ranks(ranks, machine)
    nbytes = options.parse_bytes(total, "--total")
    answer = collective.buckets(nbytes, wanted, ranks, machine.path(path, ranks))
    answer.warnings += machine.apart(ranks)
    show(answer, as_json)


def hw(
    name: Annotated[str, typer.Argument(help="One machine; all of them if not given.")] = "",
    links: Annotated[bool, typer.Option("--links", help="The kinds of links instead.")] = False,
    networks: Annotated[bool, typer.Option("--networks", help="NICs of nodes instead.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """The tables: machines, links, networks, each with its source.

    Rates in GB/s = 1e9 bytes per second and direction; data sheets often count both.

    Example: braid plan hw h200-nvlink4
    """
    if networks:
        show(catalogue.networks(), as_json)
    elif links:
        show(catalogue.links(), as_json)
    else:
        show(catalogue.machine(name) if name else catalogue.machines(), as_json)


def list_models(
    name: Annotated[str, typer.Argument(help="A model, or a config.json; all if empty.")] = "",
    tokens: Annotated[int, typer.Option(help="Tokens of a sequence, for its KV cache.")] = 0,
    as_json: options.AsJson = False,
) -> None:
    """Models: parameters, shapes and the sizes of their messages.

    Example: braid plan models deepseek-v3 --tokens 32768
    """
    if tokens and not name:
        raise PlanError("--tokens: of which model? give its name, or its config.json")
    show(work.shapes(models.find(name), tokens) if name else catalogue.models_table(), as_json)
