"""The picture: NUMA nodes as boxes, PCIe switches inside, NVSwitch as a bar below.

A line is as wide as its rate and coloured by how much of it was measured. Hovering names
everything. The file needs nothing else, and follows the reader's dark or light theme.
"""

from collections.abc import Iterator

from braid.topo.document import Document
from braid.topo.facts import Gpu
from braid.topo.look import View
from braid.topo.show import bundles, words
from braid.topo.show.layout import PAD, TOP, Box, Chip, Layout, layout
from braid.topo.show.markup import LETTER, SMALL_LETTER, TITLE_LETTER, clean, hover

_STYLE = """
text{font:11px system-ui,sans-serif;fill:#1d2733}.h{font-weight:600;font-size:13px}
.s{font-size:9.5px;fill:#5b6875}.m{text-anchor:middle}
.bg{fill:#fff}.numa{fill:#f4f6f8;stroke:#c5ced6}.switch{fill:#fff;stroke:#c5ced6}.lone{fill:none}
.gpu{fill:#dff0d8;stroke:#5c9a45}.nic{fill:#dbe9f8;stroke:#4a80b8}.bar{fill:#ece5f7;stroke:#7c5cb0}
rect.wrong{stroke:#c62828;stroke-width:2}.line{stroke:#8d99a5;fill:none}
.good{stroke:#3f9142}.fair{stroke:#d68910}.poor{stroke:#c62828}
@media screen and (prefers-color-scheme:dark){text{fill:#e3e8ed}.s{fill:#9fabb6}.bg{fill:#12181f}
.numa{fill:#1b232c;stroke:#3b4753}.switch{fill:#232d37;stroke:#3b4753}
.gpu{fill:#24401c;stroke:#79b85f}.nic{fill:#1d3550;stroke:#6fa5dc}.bar{fill:#33284a;stroke:#a58ad6}
rect.wrong{stroke:#ff8a80}.poor{stroke:#ff8a80}}
"""


def draw(whole: Document, with_title: bool = True) -> str:
    """The picture: a file of its own, or without its title a part of a page that has one."""
    return "\n".join(_Picture(whole, with_title).lines()) + "\n"


class _Picture:
    def __init__(self, whole: Document, with_title: bool) -> None:
        self.with_title = with_title
        self.machine = whole.machine
        self.links = whole.derived.links
        self.roles = whole.derived.roles
        self.view = View(self.machine)
        self.plan: Layout = layout(self.machine)
        warnings = [v for v in whole.derived.verdicts if v.level == "warning"]
        self.wrong = {device: v.text for v in reversed(warnings) for device in v.devices}

    def lines(self) -> Iterator[str]:
        """The whole file."""
        below = list(bundles.draw(self.links, self.plan))
        height = self.plan.bottom + (bundles.HEIGHT if below else 0) + 2 * PAD + 14
        title = words.heading(self.machine)
        caption = self._caption()
        needed = max(len(title) * TITLE_LETTER * self.with_title, len(caption) * SMALL_LETTER)
        width = max(self.plan.width, needed + 2 * PAD)
        top = 0 if self.with_title else TOP - PAD
        yield (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 {top} {width:g} {height - top:g}"'
            f' width="{width:g}" role="img" aria-label="{clean(title)}">'
        )
        yield f"<style>{_STYLE}</style>"
        yield f'<rect class="bg" width="{width:g}" height="{height:g}" rx="6"/>'
        if self.with_title:
            yield f'<text class="h" x="{PAD}" y="21">{clean(title)}</text>'
        yield from self._between_sockets()
        for node in self.plan.nodes:
            yield from self._node(node)
        yield from below
        yield f'<text class="s" x="{PAD}" y="{height - PAD:g}">{clean(caption)}</text>'
        yield "</svg>"

    def _caption(self) -> str:
        measured = any(link.measured_gbps for link in self.links)
        colour = "green 80 % of it or more, amber 60 %, red less" if measured else "none measured"
        what = "GB/s in one direction" + (", measured of specified" if measured else "")
        return f"{what}; lines as wide as the specified rate; colour: {colour}"

    def _between_sockets(self) -> Iterator[str]:
        rate = next((link for link in self.links if link.kind == "socket"), None)
        for left, right in zip(self.plan.nodes, self.plan.nodes[1:], strict=False):
            y = left.y + 12
            said = f"between sockets: {rate.theoretical_gbps:g} GB/s assumed" if rate else "sockets"
            yield (
                '<path class="line" stroke-width="3"'
                f' d="M{left.x + left.width:g} {y:g}H{right.x:g}">'
                f"{hover(said)}</path>"
            )

    def _node(self, node: Box) -> Iterator[str]:
        facts = next((n for n in self.machine.numa if f"NUMA node {n.index}" == node.label), None)
        full = words.numa(facts.index, facts.cpus, facts.memory_gib) if facts else node.label
        most = int(node.width / LETTER)
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
            f"{hover(title)}</rect>"
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


def _rect(box: Box, kind: str, title: str) -> str:
    return (
        f'<rect class="{kind}" x="{box.x:g}" y="{box.y:g}" width="{box.width:g}"'
        f' height="{box.height:g}" rx="5">{hover(title)}</rect>'
    )


def _group_words(group: Box) -> str:
    if not group.label:
        return "NICs near no GPU"
    return "below one PCIe switch or port" if len(group.chips) > 1 else "a PCIe port of its own"


def _short(name: str) -> str:
    return name if len(name) <= 12 else name[:11] + "…"
