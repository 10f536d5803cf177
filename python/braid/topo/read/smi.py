"""`nvidia-smi topo -m`: a matrix of words for people, read back.

The table changed with drivers: NICs were columns by their own name before they became NIC0 with a
legend; "NUMA Affinity" and "GPU NUMA ID" were added; SYS was SOC. Text that went through an issue
tracker has spaces for tabs and sometimes cells that touch ("NODEPIX"). So cells are found by what
they say, not by columns of text: a row is a name, one word per column of the head, and up to three
affinities. The text is plain() already.
"""

import re
from dataclasses import dataclass, field

from braid.topo.errors import BadTopology
from braid.topo.facts import SWITCH, Gpu, GpuLink, Machine, Nic, Numa, Path, Source
from braid.topo.numbers import node, spans
from braid.topo.read.smi_names import named
from braid.topo.tables import links_of
from braid.topo.words import path_kind

_TITLES = re.compile(r"(CPU +Affinity|NUMA +Affinity|GPU +NUMA +ID)")
_CELL = r"(?:NV\d{1,3}|NODE|N/A|PIX|PXB|PHB|SYS|SOC|MDF|X|-)"
_TOUCHING = re.compile(_CELL + "+")
_NV = re.compile(r"NV(\d{1,3})")
_LEGEND_LINE = re.compile(r"\s*(NIC\d+)\s*:\s*(\S+)\s*$")
_NONE = {"N/A", "-"}
_MOST_LINKS = 18  # of a GPU, up to NVLink 5
_ALL_OF_A_MODEL = {8, 12, 18}  # H800, A100, H100


@dataclass
class _Table:
    """The matrix as text."""

    columns: list[str]
    titles: list[str]
    cells: dict[str, list[str]] = field(default_factory=dict)
    rest: dict[str, dict[str, str]] = field(default_factory=dict)


def looks_right(text: str) -> bool:
    """Whether this is the output of `nvidia-smi topo -m`, whole or not."""
    return _head(text.splitlines()) is not None or "No devices were found" in text


def _head(lines: list[str]) -> int | None:
    for i, line in enumerate(lines):
        words = _TITLES.sub(" ", line).split()
        if words and words[0] == "GPU0" and not any(_TOUCHING.fullmatch(w) for w in words):
            return i
    return None


def _split_cells(words: list[str], num_cells: int) -> list[str]:
    """The words of a row with touching cells taken apart, as long as cells are missing."""
    out: list[str] = []
    for word in words:
        if len(out) < num_cells and _TOUCHING.fullmatch(word):
            out.extend(re.findall(_CELL, word))
        else:
            out.append(word)
    return out


def _affinities(words: list[str], titles: list[str]) -> dict[str, str]:
    """Values by title. A value that is missing altogether is the processors', which come first."""
    if len(words) < len(titles) and words and (spans(words[0]) is None or words[0] in _NONE):
        titles = titles[len(titles) - len(words) :]
    return dict(zip(titles, words, strict=False))


def _read_row(table: _Table, line: str) -> None:
    name, *words = line.split()
    if name not in table.columns:
        return  # another chassis, or a word of the text around
    words = _split_cells(words, len(table.columns))
    cells, rest = words[: len(table.columns)], words[len(table.columns) :]
    if len(cells) < len(table.columns):
        raise BadTopology(f"row {name} has {len(cells)} cells of {len(table.columns)}")
    if name in table.cells:
        raise BadTopology(f"row {name} is there twice")
    for column, cell in zip(table.columns, cells, strict=True):
        if not re.fullmatch(_CELL, cell):
            raise BadTopology(f"row {name}, column {column}: '{cell:.20}' is no word of topo -m")
    table.cells[name] = cells
    table.rest[name] = _affinities(rest, table.titles)


def _read_table(lines: list[str]) -> _Table:
    start = _head(lines)
    if start is None:
        raise BadTopology("0 GPUs: nvidia-smi found no devices")
    head = lines[start]
    titles = [" ".join(title.split()) for title in _TITLES.findall(head)]
    table = _Table(_TITLES.sub(" ", head).split(), titles)
    if len(set(table.columns)) < len(table.columns):
        raise BadTopology("a column is there twice")
    for line in lines[start + 1 :]:
        if line.strip().startswith("Legend"):
            break
        if line.strip():
            _read_row(table, line)
    missing = [name for name in table.columns if name.startswith("GPU") and name not in table.cells]
    if missing:
        raise BadTopology(f"the row of {missing[0]} is missing; is the text cut off?")
    return table


def _pairs(table: _Table) -> list[tuple[str, str, str]]:
    """Cells above the diagonal, each checked against its mirror image."""
    found = []
    for i, a in enumerate(table.columns):
        for j in range(i + 1, len(table.columns)):
            b = table.columns[j]
            words = [table.cells[x][y] for x, y in ((a, j), (b, i)) if x in table.cells]
            if len(set(words)) > 1:
                raise BadTopology(f"{a} to {b} is {words[0]}, {b} to {a} is {words[1]}")
            if words:
                found.append((a, b, words[0]))
    return found


def _links(pairs: list[tuple[str, str, str]], gpus: list[Gpu]) -> list[GpuLink]:
    """Links as bundles between pairs, unless they add up to more than a GPU can have.

    Then they end in switches, and every word counts the same links again: a GPU has as many as its
    thickest bundle, and a pair shows the smaller count of its two ends. Two GPUs are always a
    pair: a bridge between two cards and a switch look the same from here.
    """
    bundles = [(a, b, int(m[1])) for a, b, cell in pairs if (m := _NV.fullmatch(cell))]
    own = {gpu.name: [n for a, b, n in bundles if gpu.name in (a, b)] for gpu in gpus}
    if len(gpus) > 2 and any(_are_too_many(gpu, own[gpu.name]) for gpu in gpus):
        return [
            GpuLink(gpu, SWITCH, "nvlink", max(counts)) for gpu, counts in own.items() if counts
        ]
    return [GpuLink(a, b, "nvlink", count) for a, b, count in bundles if count]


def _are_too_many(gpu: Gpu, counts: list[int]) -> bool:
    """Whether a GPU cannot have all these links. Of a model that is not told, twice what some
    models have in all are too many as well: none has 8 or 12 to each of two peers.
    """
    if spec := links_of(gpu):
        return sum(counts) > spec.links
    return sum(counts) > _MOST_LINKS or (len(counts) > 1 and set(counts) <= _ALL_OF_A_MODEL)


def _gpus(table: _Table) -> list[Gpu]:
    found = []
    for name in table.columns:
        if name.startswith("GPU"):
            rest = {k: v for k, v in table.rest[name].items() if v not in _NONE}
            cpus = rest.get("CPU Affinity", "")
            numa, own = node(rest.get("NUMA Affinity")), node(rest.get("GPU NUMA ID"))
            found.append(Gpu(name, cpus=cpus, numa=numa, memory_numa=own))
    return found


def _numa(gpus: list[Gpu]) -> list[Numa]:
    """The nodes that GPUs are near to; the text knows no others."""
    cpus: dict[int, str] = {}
    for gpu in gpus:
        if gpu.numa is not None:
            cpus.setdefault(gpu.numa, gpu.cpus)
    return [Numa(index, cpus[index]) for index in sorted(cpus)]


def read(text: str) -> Machine:
    """The machine that the text describes."""
    lines = text.splitlines()
    table = _read_table(lines)
    legend = {m[1]: m[2] for line in lines if (m := _LEGEND_LINE.match(line))}
    names = {column: legend.get(column, column) for column in table.columns}
    pairs = [(names[a], names[b], cell) for a, b, cell in _pairs(table)]
    gpus = named(_gpus(table), lines)
    paths = [Path(a, b, kind) for a, b, cell in pairs if (kind := path_kind(cell))]
    return Machine(
        Source("nvidia-smi"),
        numa=_numa(gpus),
        gpus=gpus,
        gpu_links=_links(pairs, gpus),
        nics=[Nic(names[column]) for column in table.columns if not column.startswith("GPU")],
        paths=paths,
    )
