"""GPUs in NCCL's topology.

They are told apart by their address, not by their number: several ranks may share one GPU, and in
containers every rank may call its own GPU 0.
"""

from dataclasses import dataclass, field, replace

from braid.topo.errors import BadTopology
from braid.topo.facts import Gpu, PciDevice
from braid.topo.numbers import whole
from braid.topo.pci_class import AMD
from braid.topo.pci_ids import gpu_name
from braid.topo.read import nccl_links
from braid.topo.read.xml import Element

_GCN_BY_NUMBER = {"910": "gfx90a", "940": "gfx942", "941": "gfx942"}
"""What RCCL wrote before it wrote names: 906 and 908 are gfx906 and gfx908."""


@dataclass
class Gpus:
    """What was met so far."""

    by_address: dict[str, Gpu] = field(default_factory=dict)
    """Named by their number on the machine, or not yet."""
    links: list[tuple[str, Element]] = field(default_factory=list)
    """A GPU's address, and an element of it: targets may come later in the file."""
    are_told: bool = False
    """Whether there are gpu elements, which links stand in."""

    def add_device(self, device: PciDevice, numa: int | None, cpus: str) -> None:
        """A GPU of which only the PCI device is told."""
        model = gpu_name(device.vendor, device.device)
        self.by_address[device.address] = Gpu(
            "", model=model, pci=device.address, numa=numa, cpus=cpus
        )

    def add_element(self, gpu: Element, device: PciDevice, numa: int | None, cpus: str) -> None:
        """A gpu element. Further ones of a device are other ranks, or parts, of the same GPU."""
        at, dev = device.address, whole(gpu.get("dev", "-1"))
        if dev is None or ("dev" in gpu.attributes and dev < 0):
            raise BadTopology(f"the GPU at {at} has the number '{gpu.get('dev'):.20}'")
        self.are_told = True
        if at in self.by_address:
            return
        self.add_device(device, numa, cpus)
        name = f"GPU{dev}" if dev >= 0 else ""
        self.by_address[at] = replace(self.by_address[at], name=name, arch=_arch(gpu, device))
        self.links += [(at, child) for child in gpu if child.tag in nccl_links.TAGS]

    def named(self) -> dict[str, Gpu]:
        """By address, all with a name: the machine's numbers where those differ, else by address;
        GPUs that have none take the free numbers.
        """
        told = [gpu.name for gpu in self.by_address.values() if gpu.name]
        are_good = len(set(told)) == len(told)
        taken = set(told) if are_good else set()
        count = len(self.by_address) + len(taken)
        free = (name for i in range(count) if (name := f"GPU{i}") not in taken)
        return {
            at: gpu if gpu.name and are_good else replace(gpu, name=next(free))
            for at, gpu in sorted(self.by_address.items())
        }


def _arch(gpu: Element, device: PciDevice) -> str:
    """ "sm_90", "gfx942". On AMD's GPUs sm is the number of compute units."""
    gcn, sm = gpu.get("gcn").partition(":")[0], gpu.get("sm")
    if gcn.isdigit() and len(gcn) == 3:
        return _GCN_BY_NUMBER.get(gcn, f"gfx{gcn}")
    return gcn or (f"sm_{sm}" if sm and device.vendor != AMD else "")
