"""`braid bench p2p`, `host`, `interference`, `pages`: kinds that only copy."""

from typing import TYPE_CHECKING, Annotated

import typer

from braid.cli import probe_options as options
from braid.errors import Unavailable, Unsupported

if TYPE_CHECKING:
    from braid.probe.lane import Lane
    from braid.probe.lane_kinds import Ways
    from braid.probe.pairs import Settings
    from braid.record.probe import Series


def p2p(
    size: Annotated[str, typer.Option(help="Bytes of one copy, such as 256MiB.")] = "",
    pair_timeout: Annotated[
        float, typer.Option(help="Seconds that a pair has before it counts as hung.")
    ] = 30.0,
    links: options.Links = "shm,staged",
    device: options.Device = "auto",
    ranks: options.Ranks = 0,
    samples: options.Samples = 20,
    budget: options.Budget = 40.0,
    json_path: options.JsonPath = None,
    svg_path: options.SvgPath = None,
    commit: options.Commit = "",
    quiet: options.Quiet = False,
) -> None:
    """Every pair of GPUs: one way, both ways, latency. GB/s per direction, latency in us.

    Each pair is probed in a process of its own, every byte compared, with a time-out. Between CPUs
    two processes stand for each pair, and braid's links join them.
    """
    from braid.probe import outliers, pairs
    from braid.probe.publish import Run, measure

    output = options.output(samples, budget, json_path, svg_path, quiet, device, commit)
    chosen = options.words(links, options.LINKS, "--links", "link")
    if not 0 < pair_timeout <= 3600:
        raise options.fail(f"--pair-timeout: asked for {pair_timeout:g} s, it must be 0 to 3600 s")
    found = options.gpus(device, 2)
    nbytes = options.size(size or ("256MiB" if found else "4MiB"), "--size")
    settings = pairs.Settings(nbytes, samples, pair_timeout)
    number = options.count(ranks, found or 2, 2, found or 16)
    if found:
        jobs = pairs.jobs(number, settings, pairs.gpu_pair, prepare=pairs.open_gpus)
    else:
        jobs = [job for link in chosen
                for job in pairs.jobs(number, settings, _over(link), "rank", link)]  # fmt: skip
    said = {"bytes": str(nbytes), "links": "" if found else ",".join(chosen)}
    run = Run("p2p", _gpu_name(found), jobs, output, said, judge=outliers.marked)
    raise typer.Exit(measure(run))


class _over:  # noqa: N801 - stands for a function
    """The probe of a pair over one of braid's links."""

    def __init__(self, link: str) -> None:
        self._link = link

    def __call__(self, a: int, b: int, settings: "Settings", budget_s: float) -> "list[Series]":
        from braid.probe import twin
        from braid.record.probe import Series

        try:
            return twin.pair_over(self._link, a, b, settings, budget_s)
        except (Unavailable, Unsupported) as error:
            why = " ".join(str(error).split())
            case = f"{self._link} rank{a}>rank{b}"
            return [
                Series(f"{self._link} one way", case, settings.bytes, None, None,
                       verdict="unsupported", note=why, start=f"rank{a}", end=f"rank{b}")
            ]  # fmt: skip


def _gpu_name(count: int) -> str:
    """Asked in a child: a process with a CUDA context cannot start others by forking."""
    if not count:
        return ""
    from braid.probe import child

    name = child.run(_first_gpu, (), 60.0).value
    return f"{count} x {name or 'GPU'}"


def _first_gpu() -> str:
    import torch

    return str(torch.cuda.get_device_name(0))


def host(
    windows: Annotated[
        str, typer.Option(help="Bytes of one copy: a list, or a range 64KiB:64MiB:x8.")
    ] = "",
    device: options.Device = "auto",
    ranks: options.Ranks = 0,
    samples: options.Samples = 20,
    budget: options.Budget = 30.0,
    json_path: options.JsonPath = None,
    svg_path: options.SvgPath = None,
    commit: options.Commit = "",
    quiet: options.Quiet = False,
) -> None:
    """Between GPUs and the host's memory, in GB/s. Out (d2h), in (h2d), both, all GPUs at once.

    By window, the bytes of one copy. Between CPUs, threads that copy memory stand for GPUs.
    """
    from braid.probe import lane_kinds
    from braid.probe.publish import Run, measure

    output = options.output(samples, budget, json_path, svg_path, quiet, device, commit)
    found = options.gpus(device, 1)
    default = "64KiB,1MiB,16MiB" + (",256MiB" if found else "")
    chosen = options.sizes_of(windows or default, "--windows")
    name = _gpu_name(found)  # before this process has a CUDA context
    number = options.count(ranks, found or 2, 1, found or 16)
    ways = _ways(found, number)
    run = Run(
        "host", name, lane_kinds.host(ways, chosen), output,
        {"windows": ",".join(map(str, chosen))},
    )  # fmt: skip
    raise typer.Exit(measure(run))


def interference(
    size: Annotated[str, typer.Option(help="Bytes of one copy, such as 64MiB.")] = "",
    links: options.Links = "shm,staged",
    device: options.Device = "auto",
    samples: options.Samples = 20,
    budget: options.Budget = 30.0,
    json_path: options.JsonPath = None,
    svg_path: options.SvgPath = None,
    commit: options.Commit = "",
    quiet: options.Quiet = False,
) -> None:
    """What part of its GB/s a lane keeps while others are busy.

    On GPUs: to the next GPU, to the host and from it. Between CPUs: braid's links.
    """
    from braid.probe import lane_kinds
    from braid.probe.publish import Run, measure

    output = options.output(samples, budget, json_path, svg_path, quiet, device, commit)
    chosen = options.words(links, options.LINKS, "--links", "link")
    found = options.gpus(device, 1)
    if not found and len(chosen) < 2:
        raise options.fail("interference: --links: two lanes are needed, such as shm,staged")
    nbytes = options.size(size or ("64MiB" if found else "1MiB"), "--size")
    name = _gpu_name(found)

    def measured(lanes: "list[Lane]") -> int:
        jobs = lane_kinds.interference(lanes, nbytes)
        said = {"bytes": str(nbytes)}
        return measure(Run("interference", name, jobs, output, said, figures=lane_kinds.kept))

    if found:
        raise typer.Exit(measured(_gpu_lanes(found)))
    from braid.probe import twin

    with twin.lanes([twin.Way(link, 0) for link in chosen], (0, 1)) as lanes:
        code = measured(lanes)
    raise typer.Exit(code)


def pages_command(
    pages: Annotated[
        str, typer.Option(help="Bytes of a page: KV caches have 4KiB to 72KiB.")
    ] = "4KiB,16KiB,64KiB",
    total: Annotated[str, typer.Option(help="Bytes of the one piece beside them.")] = "64MiB",
    device: options.Device = "auto",
    samples: options.Samples = 20,
    budget: options.Budget = 20.0,
    json_path: options.JsonPath = None,
    svg_path: options.SvgPath = None,
    commit: options.Commit = "",
    quiet: options.Quiet = False,
) -> None:
    """What moving bytes in pages costs, against one piece. GB/s, and how many times as long.

    This is the loss that a transfer engine (`braid bench engine`) has to win back.
    """
    from braid.probe import lane_kinds
    from braid.probe.publish import Run, measure

    output = options.output(samples, budget, json_path, svg_path, quiet, device, commit)
    page_sizes = options.sizes_of(pages, "--pages")
    nbytes = options.size(total, "--total")
    found = options.gpus(device, 1)
    name = _gpu_name(found)
    lanes = _gpu_lanes(found) if found else [_ways(0, 1)[0].out]
    run = Run(
        "engine", name, lane_kinds.engine(lanes, page_sizes, nbytes), output,
        {"pages": pages, "total": str(nbytes)}, figures=lane_kinds.page_cost,
    )  # fmt: skip
    raise typer.Exit(measure(run))


def _ways(gpu_count: int, number: int) -> "list[Ways]":
    from braid.probe.lane_kinds import Ways

    if gpu_count:
        from braid.probe import gpu_lane

        return [Ways(f"gpu{i}", gpu_lane.to_host(i), gpu_lane.from_host(i)) for i in range(number)]
    from braid.probe.memory_lane import MemoryLane

    names = [f"thread{i}" for i in range(number)]
    return [
        Ways(name, MemoryLane(f"d2h {name}", 2 * i), MemoryLane(f"h2d {name}", 2 * i + 1))
        for i, name in enumerate(names)
    ]


def _gpu_lanes(count: int) -> "list[Lane]":
    from braid.probe import gpu_lane

    to_peer: list[Lane] = [gpu_lane.peer(0, 1), gpu_lane.peer(1, 0)] if count > 1 else []
    return [*to_peer, gpu_lane.to_host(0), gpu_lane.from_host(0)]


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    for command, example in (
        (p2p, "braid bench p2p --json p2p.json --svg p2p.svg"),
        (host, "braid bench host --windows 64KiB:64MiB:x8 --json host.json"),
        (interference, "braid bench interference --size 64MiB"),
        (pages_command, "braid bench pages --pages 4KiB,72KiB --total 256MiB"),
    ):
        name = command.__name__.removesuffix("_command")
        app.command(
            name, epilog=f"Example: {example}. Exit code 0 fine, 1 wrong or hung, 2 bad input."
        )(command)
