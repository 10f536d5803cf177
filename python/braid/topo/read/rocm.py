"""`rocm-smi --showtopo` and `amd-smi topology`: weights, hops and link types between AMD GPUs.

`rocm-smi --showproductname --showtopo` also names the GPUs and tells NUMA nodes; amd-smi calls them
by their PCI addresses. The tools know no NICs.

XGMI stands for every pair that the fabric joins, also over other GPUs, and "hops" are 1 for all of
them. The weight tells: the driver counts 15 for each link on the way.
"""

import re
from dataclasses import dataclass, replace

from braid.topo.errors import BadTopology
from braid.topo.facts import Gpu, GpuLink, Machine, Numa, Path, PathKind, Source
from braid.topo.numbers import address, node, whole

_SECTION = re.compile(r"=+ (.+?) =+\s*|([A-Z][A-Z -]+ TABLE):\s*")
_NUMA = re.compile(
    r"\s*GPU ?\[?(\d{1,4})\]?\s*:\s*\(Topology\) Numa (Node|Affinity):\s*(-?\d+)\s*$"
)
_SERIES = re.compile(r"\s*GPU ?\[?(\d{1,4})\]?\s*:\s*Card [Ss]eries:\s*(\S.*?)\s*$")
_GFX = re.compile(r"\s*GPU ?\[?(\d{1,4})\]?\s*:\s*GFX Version:\s*(gfx\w+)\s*$")
_TYPES = ("Link Type between two GPUs", "LINK TYPE TABLE")
_HOPS = ("Hops between two GPUs", "HOPS TABLE")
_WEIGHTS = ("Weight between two GPUs", "WEIGHT TABLE")
_ONE_LINK = 15


@dataclass(frozen=True)
class _Table:
    """A matrix; every row has a cell for every row."""

    rows: dict[str, dict[str, str]]

    def cell(self, a: str, b: str) -> str:
        """ "" where there is no such table."""
        return self.rows.get(a, {}).get(b, "")


def looks_right(text: str) -> bool:
    """Whether this is the output of rocm-smi or amd-smi, whole or not."""
    return "ROCm System Management Interface" in text or any(title in text for title in _TYPES)


def read(text: str) -> Machine:
    """The machine that the text describes."""
    types = _table(text, _TYPES)
    if not types.rows:
        raise BadTopology("0 GPUs: the text has no table of link types")
    gpus = _gpus(list(types.rows), text)
    links, paths = _pairs(gpus, types, _table(text, _HOPS), _table(text, _WEIGHTS))
    nodes = sorted({gpu.numa for gpu in gpus.values() if gpu.numa is not None})
    return Machine(
        Source("rocm-smi"),
        numa=[Numa(index) for index in nodes],
        gpus=list(gpus.values()),
        gpu_links=links,
        paths=paths,
    )


def _section(text: str, titles: tuple[str, ...]) -> list[str]:
    """The lines below a title, up to the next one."""
    lines: list[str] = []
    inside = False
    for line in text.splitlines():
        if match := _SECTION.fullmatch(line.strip()):
            inside = (match[1] or match[2]) in titles
        elif inside and line.strip():
            lines.append(line)
    return lines


def _table(text: str, titles: tuple[str, ...]) -> _Table:
    lines = _section(text, titles)
    if not lines:
        return _Table({})
    columns = lines[0].split()
    rows = {}
    for line in lines[1:]:
        name, *cells = line.split()
        if name in columns:
            rows[name] = dict(zip(columns, cells, strict=False))
    for name in columns:
        if len(rows.get(name, {})) != len(columns):
            raise BadTopology(f"{titles[0]}: the row of {name:.20} is cut off or missing")
    return _Table({name: rows[name] for name in columns})


def _gpus(names: list[str], text: str) -> dict[str, Gpu]:
    """By the name in the tables: GPU0, or an address."""
    found = {
        name: Gpu(f"GPU{i}", pci=at) if (at := address(name)) else Gpu(name)
        for i, name in enumerate(names)
    }
    numbered = {gpu.name: name for name, gpu in found.items()}
    for line in text.splitlines():
        for pattern, key in ((_SERIES, "model"), (_GFX, "arch")):
            if (match := pattern.match(line)) and (name := numbered.get(f"GPU{int(match[1])}")):
                found[name] = replace(found[name], **{key: match[2]})  # type: ignore[arg-type]
        if (match := _NUMA.match(line)) and (name := numbered.get(f"GPU{int(match[1])}")):
            found[name] = replace(found[name], numa=node(match[3]))
    return found


def _pairs(
    gpus: dict[str, Gpu], types: _Table, hops: _Table, weights: _Table
) -> tuple[list[GpuLink], list[Path]]:
    links, paths = [], []
    names = list(gpus)
    for i, a in enumerate(names):
        for b in names[i + 1 :]:
            kind, one, two = types.cell(a, b), gpus[a], gpus[b]
            if kind != (back := types.cell(b, a)):
                there, here = f"{one.name} to {two.name}", f"{two.name} to {one.name}"
                raise BadTopology(f"{there} is {kind:.10}, {here} is {back:.10}")
            weight = whole(weights.cell(a, b)) or 0
            if kind == "XGMI" and weight <= _ONE_LINK:
                links.append(GpuLink(one.name, two.name, "xgmi", 1))
                continue
            told = _path(hops.cell(a, b)) if kind == "PCIE" else None
            if kind in ("XGMI", "PCIE") and (path := told or _by_nodes(one, two)):
                paths.append(Path(one.name, two.name, path))
    return links, paths


def _by_nodes(a: Gpu, b: Gpu) -> PathKind | None:
    """How GPUs meet over PCIe where no hops are told: of those that xGMI joins over others, say."""
    if a.numa is None or b.numa is None:
        return None
    return "NODE" if a.numa == b.numa else "SYS"


def _path(hops: str) -> PathKind | None:
    """Two hops meet in one CPU; three cross the link between sockets. None where no number is."""
    count = whole(hops)
    if count is None:
        return None
    return "PHB" if count in (1, 2) else "SYS"
