"""`rocm-smi --showtopo`: hops and link types between AMD GPUs, and their NUMA nodes.

`rocm-smi --showproductname --showtopo` also names the GPUs. The tool knows no NICs.
"""

import re
from dataclasses import replace

from braid.topo.errors import BadTopology
from braid.topo.facts import Gpu, GpuLink, Machine, Numa, Path, PathKind, Source
from braid.topo.numbers import node

_SECTION = re.compile(r"=+ (.+?) =+\s*")
_NUMA = re.compile(
    r"\s*GPU ?\[?(\d{1,4})\]?\s*:\s*\(Topology\) Numa (Node|Affinity):\s*(-?\d+)\s*$"
)
_SERIES = re.compile(r"\s*GPU ?\[?(\d{1,4})\]?\s*:\s*Card [Ss]eries:\s*(\S.*?)\s*$")
_GFX = re.compile(r"\s*GPU ?\[?(\d{1,4})\]?\s*:\s*GFX Version:\s*(gfx\w+)\s*$")
_TYPES = "Link Type between two GPUs"
_HOPS = "Hops between two GPUs"


def looks_right(text: str) -> bool:
    """Whether this is the output of rocm-smi, whole or not."""
    return "ROCm System Management Interface" in text or _TYPES in text


def read(text: str) -> Machine:
    """The machine that the text describes."""
    types = _table(text, _TYPES)
    if not types:
        raise BadTopology("0 GPUs: the text has no table of link types")
    hops = _table(text, _HOPS)
    gpus = _gpus(list(types), text)
    links, paths = _pairs(types, hops)
    nodes = sorted({gpu.numa for gpu in gpus if gpu.numa is not None})
    return Machine(
        Source("rocm-smi"),
        numa=[Numa(index) for index in nodes],
        gpus=gpus,
        gpu_links=links,
        paths=paths,
    )


def _section(text: str, title: str) -> list[str]:
    """The lines below a title, up to the next one."""
    lines: list[str] = []
    inside = False
    for line in text.splitlines():
        if match := _SECTION.fullmatch(line.strip()):
            inside = match[1] == title
        elif inside and line.strip():
            lines.append(line)
    return lines


def _table(text: str, title: str) -> dict[str, dict[str, str]]:
    """Rows of a matrix by name; every row has a cell for every row."""
    lines = _section(text, title)
    if not lines:
        return {}
    columns = lines[0].split()
    rows = {}
    for line in lines[1:]:
        name, *cells = line.split()
        if name in columns:
            rows[name] = dict(zip(columns, cells, strict=False))
    for name in columns:
        if len(rows.get(name, {})) != len(columns):
            raise BadTopology(f"{title}: the row of {name:.20} is cut off or missing")
    return rows


def _gpus(names: list[str], text: str) -> list[Gpu]:
    found = {name: Gpu(name) for name in names}
    for line in text.splitlines():
        for pattern, key in ((_SERIES, "model"), (_GFX, "arch")):
            if (match := pattern.match(line)) and (gpu := found.get(f"GPU{int(match[1])}")):
                found[gpu.name] = replace(gpu, **{key: match[2]})  # type: ignore[arg-type]
        if (match := _NUMA.match(line)) and (gpu := found.get(f"GPU{int(match[1])}")):
            found[gpu.name] = replace(gpu, numa=node(match[3]))
    return list(found.values())


def _pairs(
    types: dict[str, dict[str, str]], hops: dict[str, dict[str, str]]
) -> tuple[list[GpuLink], list[Path]]:
    links, paths = [], []
    names = list(types)
    for i, a in enumerate(names):
        for b in names[i + 1 :]:
            kind = types[a][b]
            if kind != types[b][a]:
                raise BadTopology(f"{a} to {b} is {kind:.10}, {b} to {a} is {types[b][a]:.10}")
            if kind == "XGMI":
                links.append(GpuLink(a, b, "xgmi", 1))
            elif kind == "PCIE":
                paths.append(Path(a, b, _path(hops.get(a, {}).get(b, ""))))
    return links, paths


def _path(hops: str) -> PathKind:
    """Two hops meet in one CPU; three cross the link between sockets."""
    return "PHB" if hops in ("1", "2") else "SYS"
