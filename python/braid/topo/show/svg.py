"""The picture: NUMA nodes as boxes, PCIe switches inside, NVSwitch as a bar below.

A line is as wide as its rate and coloured by how much of it was measured. Hovering names
everything. The file needs nothing else, and follows the reader's dark or light theme.
"""

from collections.abc import Iterator
from html import escape

from braid.topo.document import Document
from braid.topo.facts import SWITCH, Gpu
from braid.topo.look import View
from braid.topo.rates import Rate
from braid.topo.show import words
from braid.topo.show.layout import GAP, PAD, Box, Chip, Layout, layout

_BAR = 26
_DROP = 46  # from the GPUs to the bar
_TITLE_LETTER = 7.4
_STYLE = """
text{font:11px system-ui,sans-serif;fill:#1d2733}.h{font-weight:600;font-size:13px}
.s{font-size:9.5px;fill:#5b6875}.m{text-anchor:middle}
.bg{fill:#fff}.numa{fill:#f4f6f8;stroke:#c5ced6}.switch{fill:#fff;stroke:#c5ced6}.lone{fill:none}
.gpu{fill:#dff0d8;stroke:#5c9a45}.nic{fill:#dbe9f8;stroke:#4a80b8}.bar{fill:#ece5f7;stroke:#7c5cb0}
.wrong{stroke:#c62828;stroke-width:2}.line{stroke:#8d99a5;fill:none}
.good{stroke:#3f9142}.fair{stroke:#d68910}.poor{stroke:#c62828}
@media(prefers-color-scheme:dark){text{fill:#e3e8ed}.s{fill:#9fabb6}.bg{fill:#12181f}
.numa{fill:#1b232c;stroke:#3b4753}.switch{fill:#232d37;stroke:#3b4753}
.gpu{fill:#24401c;stroke:#79b85f}.nic{fill:#1d3550;stroke:#6fa5dc}.bar{fill:#33284a;stroke:#a58ad6}}
"""


def clean(text: str) -> str:
    """Text for XML and HTML: escaped, and without characters that neither may have."""
    return escape("".join(c for c in text if c.isprintable()))


def draw(whole: Document) -> str:
    """The picture as a file of its own."""
    return "\n".join(_Picture(whole).lines()) + "\n"


class _Picture:
    def __init__(self, whole: Document) -> None:
        self.machine = whole.machine
        self.links = whole.derived.links
        self.roles = whole.derived.roles
        self.view = View(self.machine)
        self.plan: Layout = layout(self.machine)
        warnings = [v for v in whole.derived.verdicts if v.level == "warning"]
        self.wrong = {device: v.text for v in reversed(warnings) for device in v.devices}

    def lines(self) -> Iterator[str]:
        """The whole file."""
        below = list(self._gpu_links())
        has_links = bool(below)
        height = self.plan.bottom + (_DROP + _BAR if has_links else 0) + 2 * PAD + 14
        title = words.heading(self.machine)
        width = max(self.plan.width, len(title) * _TITLE_LETTER + 2 * PAD)
        yield (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}"'
            f' width="{width:g}" role="img" aria-label="{clean(title)}">'
        )
        yield f"<style>{_STYLE}</style>"
        yield f'<rect class="bg" width="{width:g}" height="{height:g}" rx="6"/>'
        yield f'<text class="h" x="{PAD}" y="21">{clean(title)}</text>'
        yield from self._between_sockets()
        for node in self.plan.nodes:
            yield from self._node(node)
        yield from below
        yield f'<text class="s" x="{PAD}" y="{height - PAD:g}">{clean(self._caption())}</text>'
        yield "</svg>"

    def _caption(self) -> str:
        measured = any(link.measured_gbps for link in self.links)
        colour = "green 80 % of it or more, amber 60 %, red less" if measured else "none measured"
        return f"GB/s in one direction; lines as wide as the specified rate; colour: {colour}"

    def _between_sockets(self) -> Iterator[str]:
        rate = next((link for link in self.links if link.kind == "socket"), None)
        for left, right in zip(self.plan.nodes, self.plan.nodes[1:], strict=False):
            y = left.y + 12
            said = f"between sockets: {rate.theoretical_gbps:g} GB/s assumed" if rate else "sockets"
            yield (
                '<path class="line" stroke-width="3"'
                f' d="M{left.x + left.width:g} {y:g}H{right.x:g}">'
                f"<title>{said}</title></path>"
            )

    def _node(self, node: Box) -> Iterator[str]:
        facts = next((n for n in self.machine.numa if f"NUMA node {n.index}" == node.label), None)
        full = words.numa(facts.index, facts.cpus, facts.memory_gib) if facts else node.label
        most = int(node.width / 6.2)
        label = full if len(full) <= most else node.label
        yield _rect(node, "numa", full)
        yield f'<text x="{node.x + PAD:g}" y="{node.y + 16:g}">{clean(label)}</text>'
        for group in node.boxes:
            yield _rect(group, "switch" if group.label else "lone", _group_words(group))
            for chip in group.chips:
                yield from self._chip(chip)

    def _chip(self, chip: Chip) -> Iterator[str]:
        gpu = next((gpu for gpu in self.machine.gpus if gpu.name == chip.name), None)
        title = self._gpu_words(gpu) if gpu else self._nic_words(chip.name)
        wrong = self.wrong.get(chip.name)
        if wrong:
            title += f"\n{wrong}"
        yield (
            f'<rect class="{chip.kind}{" wrong" if wrong else ""}" x="{chip.x:g}" y="{chip.y:g}"'
            f' width="{chip.width:g}" height="{chip.height:g}" rx="3">'
            f"<title>{_title(title)}</title></rect>"
        )
        small = self._pcie_of(chip.name) if gpu else ""
        y = chip.y + (chip.height / 2 + 4 if not small else 17)
        yield f'<text class="m" x="{chip.middle:g}" y="{y:g}">{clean(_short(chip.name))}</text>'
        if small:
            yield f'<text class="s m" x="{chip.middle:g}" y="{chip.y + 31:g}">{clean(small)}</text>'

    def _pcie_of(self, name: str) -> str:
        link = next((x for x in self.links if x.a == name and x.kind == "pcie"), None)
        return link.name.partition(",")[0] if link else ""

    def _gpu_words(self, gpu: Gpu) -> str:
        return words.gpu(gpu, self.view.pci.get(gpu.pci or ""))

    def _nic_words(self, name: str) -> str:
        nic = next(nic for nic in self.machine.nics if nic.name == name)
        return words.nic(nic, self.view.pci.get(nic.pci or ""), self.roles[name])

    def _gpu_links(self) -> Iterator[str]:
        """Bars for switches and full meshes, arcs for anything else."""
        links = [link for link in self.links if link.kind in ("nvlink", "xgmi")]
        switched = [link for link in links if link.b == SWITCH]
        direct = [link for link in links if link.b != SWITCH]
        if switched:
            yield from self._bar(SWITCH, {link.a: [link] for link in switched})
        elif direct and self._is_even_mesh(direct):
            own: dict[str, list[Rate]] = {}
            for link in direct:
                own.setdefault(link.a, []).append(link)
            yield from self._bar("every GPU to every other", own)
        else:
            yield from self._arcs(direct)

    def _is_even_mesh(self, direct: list[Rate]) -> bool:
        count = len(self.machine.gpus)
        pairs = {(link.a, link.b) for link in direct}
        same = len({(link.count, link.theoretical_gbps) for link in direct}) == 1
        return count > 2 and same and len(pairs) == count * (count - 1)

    def _bar(self, label: str, own: dict[str, list[Rate]]) -> Iterator[str]:
        chips = [self.plan.gpus[name] for name in own]
        y = self.plan.bottom + _DROP
        for chip, links in zip(chips, own.values(), strict=True):
            yield _drop(chip, y, links)
        left, right = min(c.x for c in chips), max(c.x + c.width for c in chips)
        first = next(iter(own.values()))
        text = f"{label}: {first[0].name}, {sum(link.count for link in first)} links a GPU"
        yield (
            f'<rect class="bar" x="{left:g}" y="{y:g}" width="{right - left:g}"'
            f' height="{_BAR}" rx="4"/>'
        )
        middle = (left + right) / 2
        yield f'<text class="m" x="{middle:g}" y="{y + 17:g}">{clean(text)}</text>'

    def _arcs(self, direct: list[Rate]) -> Iterator[str]:
        """One arc per pair; each is told twice."""
        order = list(self.plan.gpus)
        for link in direct:
            if order.index(link.a) < order.index(link.b):
                a, b = self.plan.gpus[link.a], self.plan.gpus[link.b]
                y = a.y + a.height
                deep = min(_DROP + _BAR, 18 + (b.middle - a.middle) / 8)
                path = f"M{a.middle:g} {y:g}C{a.middle:g} {y + deep + PAD:g} {b.middle:g} "
                path += f"{y + deep + PAD:g} {b.middle:g} {y:g}"
                said = f"{link.a} to {link.b}: {link.count} x {link.name}{_rate(link)}"
                yield (
                    f'<path class="line{_colour(link)}" stroke-width="{_width(link):g}" d="{path}">'
                    f"<title>{_title(said)}</title></path>"
                )


def _rect(box: Box, kind: str, title: str) -> str:
    return (
        f'<rect class="{kind}" x="{box.x:g}" y="{box.y:g}" width="{box.width:g}"'
        f' height="{box.height:g}" rx="5"><title>{_title(title)}</title></rect>'
    )


def _group_words(group: Box) -> str:
    if not group.label:
        return "NICs near no GPU"
    return "below one PCIe switch or port" if len(group.chips) > 1 else "a PCIe port of its own"


def _drop(chip: Chip, y: float, links: list[Rate]) -> str:
    """A line from a GPU to the bar, with its rate beside it."""
    total = sum(link.theoretical_gbps or 0 for link in links)
    top = chip.y + chip.height
    said = f"{chip.name}: {sum(link.count for link in links)} x {links[0].name}"
    said += _rate(links[0]) if len(links) == 1 else f", {total:g} GB/s together"
    label = f"{total:g}" if total else ""
    return (
        f'<path class="line{_colour(links[0])}" stroke-width="{min(1 + total / 75, 10):g}"'
        f' d="M{chip.middle:g} {top:g}V{y:g}"><title>{_title(said)}</title></path>'
        f'<text class="s" x="{chip.middle + GAP + 3:g}" y="{y - GAP:g}">{label}</text>'
    )


def _rate(link: Rate) -> str:
    if link.theoretical_gbps is None:
        return ""
    measured = f", measured {link.measured_gbps:g}" if link.measured_gbps else ""
    return f", {link.theoretical_gbps:g} GB/s {link.basis}{measured}"


def _width(link: Rate) -> float:
    return min(1 + (link.theoretical_gbps or 0) / 75, 10)


def _colour(link: Rate) -> str:
    if not link.measured_gbps or not link.theoretical_gbps:
        return ""
    part = link.measured_gbps / link.theoretical_gbps
    return " good" if part >= 0.8 else " fair" if part >= 0.6 else " poor"


def _short(name: str) -> str:
    return name if len(name) <= 12 else name[:11] + "…"


def _title(text: str) -> str:
    return "\n".join(clean(line) for line in text.splitlines())
