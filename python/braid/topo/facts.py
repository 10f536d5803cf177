"""What a machine is made of: plain facts, whatever tool they were read from.

Nothing here is decided, measured or drawn. A field that a source does not tell is None (or 0
for a PCIe speed or width, "" for a name), never a guess; what follows from the facts (rates,
paths' words, warnings) is in other files. Rates are GB/s = 1e9 bytes per second and direction
unless a name says gbit. Devices are named as the user knows them: "GPU0", "mlx5_0"; a PCI
address is written as sysfs does, "0000:1b:00.0".
"""

from dataclasses import dataclass, field
from typing import Literal

PathKind = Literal["PIX", "PXB", "PHB", "NODE", "SYS"]
"""How a byte gets from one device to another without NVLink, in nvidia-smi's words."""
PciKind = Literal[
    "root_port", "switch", "port", "bridge", "gpu", "nic", "nvswitch", "nvme", "other"
]
"""A switch is its upstream port; the ports below it are its downstream ports."""
NicKind = Literal["infiniband", "roce", "efa", "ethernet", "unknown"]
NicRole = Literal["backend", "frontend", "storage", "out-of-band", "unknown"]
GpuLinkKind = Literal["nvlink", "xgmi", "c2c"]
Format = Literal["live", "nvidia-smi", "nccl", "rocm-smi", "hwloc", "sysfs"]

SWITCH = "NVSwitch"
"""The far end of a GPU's links to switches: their number is not told by every source."""
CPU = "CPU"
"""The far end of a GPU's C2C links."""
LINKS_NOT_TOLD = "links between GPUs are not all told"
"""How a gap begins after which no link is not the same as none."""


@dataclass(frozen=True)
class Source:
    """Where the facts come from."""

    format: Format
    tools: dict[str, str] = field(default_factory=dict)
    """Versions of what was asked: "nvml", "driver", "kernel"."""
    gaps: list[str] = field(default_factory=list)
    """What could not be read, and why."""


@dataclass(frozen=True)
class Numa:
    """A NUMA node."""

    index: int
    cpus: str = ""
    """A list as Linux writes it: "0-51,104-155"."""
    memory_gib: float | None = None
    socket: int | None = None


@dataclass(frozen=True)
class Cpu:
    """The processors, all of one model."""

    model: str = ""
    sockets: int | None = None
    arch: str = ""
    socket_gbps: float | None = None
    """Rate between two sockets that NCCL assumes for this model."""


@dataclass(frozen=True)
class PcieLink:
    """A device's link towards the CPU, now and at best; 0 where it is not told."""

    gts: float = 0.0
    """GT/s per lane."""
    width: int = 0
    max_gts: float = 0.0
    max_width: int = 0
    gbps: float = 0.0
    """Of sources that tell only what speed and width make together."""


@dataclass(frozen=True)
class PciDevice:
    """One function on PCI that matters for moving data, or a bridge above one."""

    address: str
    kind: PciKind
    parent: str | None = None
    """The bridge above; None for what hangs on the host bridge."""
    host_bridge: str | None = None
    """ "pci0000:15"; None where the source does not tell host bridges apart."""
    numa: int | None = None
    link: PcieLink = field(default_factory=PcieLink)
    class_code: str = ""
    """ "0x030200"."""
    vendor: str = ""
    """ "0x10de"."""
    device: str = ""
    name: str = ""
    redirects_peers: bool | None = None
    """Of bridges: access control services send traffic between peers up to the CPU."""


@dataclass(frozen=True)
class Gpu:
    """One GPU."""

    name: str
    """ "GPU0", numbered as the source numbers."""
    model: str = ""
    uuid: str = ""
    arch: str = ""
    """ "sm_90", "gfx942"."""
    pci: str | None = None
    numa: int | None = None
    cpus: str = ""
    memory_gib: float | None = None
    memory_numa: int | None = None
    """The NUMA node that the GPU's own memory is (Grace Hopper and later)."""
    mig: list[str] = field(default_factory=list)
    """Profiles of the instances it is cut into."""


@dataclass(frozen=True)
class GpuLink:
    """A bundle of equal links from a GPU to a GPU, to the switches or to its CPU."""

    a: str
    b: str
    kind: GpuLinkKind
    count: int
    gbps_each: float | None = None
    """As the device itself says; None: to be taken from the GPU's model."""
    inactive: int = 0
    """Links of the GPU that are there and down."""


@dataclass(frozen=True)
class Nic:
    """One network interface or RDMA device."""

    name: str
    kind: NicKind = "unknown"
    pci: str | None = None
    numa: int | None = None
    gbit: float | None = None
    """Gbit/s per direction, all ports that are up."""
    ports: int = 1
    lanes: str = ""
    """ "4X NDR", as the driver says."""
    is_up: bool | None = None
    has_default_route: bool | None = None
    interfaces: list[str] = field(default_factory=list)
    """Network interfaces of an RDMA device: "ens1f0np0"."""


@dataclass(frozen=True)
class Path:
    """How two devices meet over PCIe. Undirected."""

    a: str
    b: str
    kind: PathKind


@dataclass(frozen=True)
class PeerAccess:
    """What the driver allows between two GPUs: "ok", or why not."""

    a: str
    b: str
    read: str
    write: str


@dataclass(frozen=True)
class Machine:
    """One machine."""

    source: Source
    name: str = ""
    cpu: Cpu = field(default_factory=Cpu)
    iommu: bool | None = None
    """True when it translates addresses of devices, which slows traffic between peers."""
    numa: list[Numa] = field(default_factory=list)
    pci: list[PciDevice] = field(default_factory=list)
    gpus: list[Gpu] = field(default_factory=list)
    gpu_links: list[GpuLink] = field(default_factory=list)
    nics: list[Nic] = field(default_factory=list)
    paths: list[Path] = field(default_factory=list)
    peers: list[PeerAccess] = field(default_factory=list)

    @property
    def ends(self) -> "list[Gpu | Nic]":
        """What data moves between: GPUs, then NICs."""
        return [*self.gpus, *self.nics]
