"""`braid plan nodes`."""

from typing import Annotated

import typer

from braid import sizes as spelled
from braid.cli.plan import options
from braid.plan import stages
from braid.plan.show import show
from braid.plan.wrong import PlanError


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("nodes")(over_nodes)


def over_nodes(
    nodes: Annotated[int, typer.Option("--nodes", help="Nodes.")],
    nics: Annotated[str, typer.Option("--nics", help="Of a node: 8@400Gbit/s, 1@800Mbit/s.")],
    op: Annotated[
        str, typer.Option("--op", help="all_gather, reduce_scatter or all_reduce.")
    ] = "all_gather",
    ranks: Annotated[int, typer.Option("--ranks", "-n", help="GPUs per node.")] = 8,
    inside: Annotated[
        float, typer.Option("--inside", help="What one of them sends inside the node, GB/s.")
    ] = stages.INSIDE_GBPS,
    sizes: Annotated[
        str, typer.Option("--sizes", help="Bytes as nccl-tests counts them: a list or range.")
    ] = "1MiB,8MiB,64MiB,1GiB",
    as_json: options.AsJson = False,
) -> None:
    """Several nodes: one ring around all ranks against two stages. These are inside the nodes and
    between them: bytes on every link, times, and what limits.

    Columns: ring, one ring around all ranks, as NCCL's; serial, two stages one after the other;
    staged, both at once, in pieces; gain, ring / staged; what two stages wait for.

    Example: braid plan nodes --nodes 2 --nics 8@400Gbit/s

    Example: braid plan nodes --nodes 2 --nics 1@800Mbit/s -n 4 --inside 3 --op reduce_scatter
    """
    try:
        wanted = spelled.parse_sizes(sizes)
    except ValueError as error:
        raise PlanError(f"--sizes: {error}") from None
    asked = stages.Stages(op, nodes, ranks, stages.parse_nics(nics), inside)
    show(stages.report(asked, wanted), as_json)
