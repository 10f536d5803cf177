"""Looking things up in a machine: neighbours, paths, links of a pair.

A View is built once and answers from dictionaries; the facts stay plain lists.
"""

from collections.abc import Iterator
from functools import cached_property

from braid.topo.facts import CPU, LINKS_NOT_TOLD, SWITCH, Gpu, GpuLink, Machine, PathKind, PciDevice


class View:
    """Indexes of one machine."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    @cached_property
    def pci(self) -> dict[str, PciDevice]:
        """Devices by address."""
        return {device.address: device for device in self.machine.pci}

    @cached_property
    def gpus(self) -> dict[str, Gpu]:
        """GPUs by name."""
        return {gpu.name: gpu for gpu in self.machine.gpus}

    @cached_property
    def misses_links(self) -> bool:
        """Whether the source left out links, so that no link is not the same as none."""
        return any(gap.startswith(LINKS_NOT_TOLD) for gap in self.machine.source.gaps)

    @cached_property
    def _paths(self) -> dict[frozenset[str], PathKind]:
        return {frozenset((path.a, path.b)): path.kind for path in self.machine.paths}

    @cached_property
    def _links(self) -> dict[str, list[GpuLink]]:
        found: dict[str, list[GpuLink]] = {gpu.name: [] for gpu in self.machine.gpus}
        for link in self.machine.gpu_links:
            for end in (link.a, link.b):
                if end in found:
                    found[end].append(link)
        return found

    @cached_property
    def _fabric(self) -> dict[str, list[GpuLink]]:
        return {gpu: [x for x in links if x.b != CPU] for gpu, links in self._links.items()}

    @cached_property
    def _switch_links(self) -> dict[str, int]:
        return {
            gpu: sum(link.count for link in links if link.b == SWITCH)
            for gpu, links in self._fabric.items()
        }

    def path(self, a: str, b: str) -> PathKind | None:
        """How two devices meet over PCIe."""
        return self._paths.get(frozenset((a, b)))

    def links_of(self, gpu: str) -> list[GpuLink]:
        """NVLink and xGMI bundles of a GPU, either way round; not the link to its own CPU."""
        return self._fabric.get(gpu, [])

    def link_to_cpu(self, gpu: str) -> GpuLink | None:
        """The C2C bundle of a GPU."""
        return next((link for link in self._links.get(gpu, []) if link.b == CPU), None)

    def switch_links(self, gpu: str) -> int:
        """Links of a GPU that end in switches."""
        return self._switch_links.get(gpu, 0)

    def links_between(self, a: str, b: str) -> int:
        """Links that two GPUs can use to reach each other: their own, or those into switches."""
        direct = sum(x.count for x in self.links_of(a) if b in (x.a, x.b))
        return direct or min(self.switch_links(a), self.switch_links(b))

    def num_links(self, gpu: str) -> int:
        """All NVLink or xGMI links of a GPU."""
        return sum(link.count for link in self.links_of(gpu))

    def chain(self, address: str | None) -> Iterator[PciDevice]:
        """A device and the bridges above it, up to the host bridge."""
        while address is not None and (device := self.pci.get(address)) is not None:
            yield device
            address = device.parent
