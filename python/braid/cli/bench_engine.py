"""`braid bench engine`: the transfer engine, its baselines, and two hosts in network namespaces."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from braid.cli import probe_options as options
from braid.errors import InvalidArgument

if TYPE_CHECKING:
    from braid.bench.engine.contestants import Seats
    from braid.bench.engine.jobs import Rivals
    from braid.probe.publish import Output

_WAYS = ("local", "tcp", "net", "shm")
_KINDS = ("write", "pages")


def engine(
    cases: Annotated[
        str, typer.Option(help="write: one after the other, each waited for; pages: all at once.")
    ] = "write,pages",
    sizes: Annotated[
        str, typer.Option(help="Bytes of a write or a page.")
    ] = "1KiB,8KiB,64KiB,1MiB",
    ways: Annotated[
        str, typer.Option(help="local (one host, no NIC), or tcp, net, shm of libfabric.")
    ] = "local,tcp,net",
    total: Annotated[str, typer.Option(help="Bytes of the memory that pages are of.")] = "64MiB",
    plain: Annotated[
        Path | None, typer.Option(help="The program plain_write: fi_writemsg and nothing else.")
    ] = None,
    nixl_python: Annotated[
        Path | None, typer.Option(help="A Python that can import nixl: NIXL over UCX, too.")
    ] = None,
    nixl_plugin: Annotated[
        Path | None, typer.Option(help="libplugin_BRAID.so: NIXL over braid, too.")
    ] = None,
    cores: Annotated[
        str, typer.Option(help="The source's core and the target's, as 0,1; left out: any.")
    ] = "",
    hosts: Annotated[
        bool, typer.Option("--hosts", help="Two hosts, three rails, one cut. Needs root.")
    ] = False,
    provider: Annotated[str, typer.Option(help="With --hosts: tcp or net.")] = "tcp",
    samples: options.Samples = 20,
    budget: options.Budget = 60.0,
    json_path: options.JsonPath = None,
    svg_path: options.SvgPath = None,
    commit: options.Commit = "",
    quiet: options.Quiet = False,
) -> None:
    """The transfer engine between two processes. Beside a plain libfabric program and NIXL.

    Times in us, GB/s; the figures are speed-ups (a baseline's time / braid's): above 1, braid is
    faster.
    """
    output = options.output(samples, budget, json_path, svg_path, quiet, "cpu", commit)
    if hosts:
        raise typer.Exit(_between_hosts(options.word(provider, ("tcp", "net"), "engine: --provider",
                                                     "provider"), output))  # fmt: skip
    rivals = _rivals(plain, nixl_python, nixl_plugin)
    kinds = options.words(cases, _KINDS, "engine: --cases", "case")
    chosen = options.words(ways, _WAYS, "engine: --ways", "way")
    page_sizes = options.sizes_of(sizes, "engine: --sizes")
    nbytes = options.size(total, "engine: --total")
    for size in page_sizes:
        if size % 8 or size > nbytes:
            raise options.fail(f"engine: --sizes: {size} B is no multiple of 8 within --total")
    from braid.bench.engine import jobs
    from braid.probe.publish import Run, measure

    found = jobs.Field(rivals, nbytes, _seats(cores))
    run = Run(
        "transfer-engine", "", jobs.jobs(kinds, page_sizes, chosen, found), output,
        {"total": str(nbytes), "cores": cores or "any"}, ranks=0, figures=jobs.ratios_of,
    )  # fmt: skip
    try:
        code = measure(run)
    finally:
        found.close()
    raise typer.Exit(code)


def _rivals(plain: Path | None, nixl_python: Path | None, plugin: Path | None) -> "Rivals":
    from braid.bench.engine.contestants import has_nixl
    from braid.bench.engine.jobs import Rivals

    if plain and not os.path.isfile(plain):
        raise options.fail(f"engine: --plain: there is no file {plain}")
    if nixl_python and not has_nixl(nixl_python):
        raise options.fail(f"engine: --nixl-python: {nixl_python} cannot import nixl")
    if plugin and not (nixl_python and os.path.isfile(plugin)):
        raise options.fail(f"engine: --nixl-plugin: {plugin} needs to be there, and --nixl-python")
    return Rivals(plain.resolve() if plain else None, nixl_python, plugin)


def _seats(cores: str) -> "Seats":
    from braid.bench.engine.contestants import Seats

    if not cores:
        return Seats()
    here = sorted(os.sched_getaffinity(0))
    found = [int(each) for each in cores.split(",") if each.isdecimal()]
    if len(found) != 2 or not set(found) <= set(here):
        raise options.fail(f"engine: --cores: asked for two of {here}, found '{cores}'")
    return Seats((found[0], found[1]))


def _between_hosts(provider: str, output: "Output") -> int:
    from braid.bench.engine import network

    if why := network.why_not():
        raise InvalidArgument(f"bench engine: --hosts: {why}")
    from braid.bench.engine import hosts
    from braid.probe.publish import Run, measure

    job, figures = hosts.job(hosts.Plan(provider=provider))
    rates = "/".join(f"{rate:g}" for rate in hosts.RATES_MBIT)
    run = Run(
        "transfer-engine", "", [job], output,
        {"hosts": "2 network namespaces", "rates_mbit": rates, "provider": provider},
        figures=figures,
    )  # fmt: skip
    return measure(run)


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(
        epilog="Example: braid bench engine --ways tcp --sizes 64KiB --plain build/plain_write."
        " Exit code 0 fine, 1 wrong or lost, 2 bad input."
    )(engine)
