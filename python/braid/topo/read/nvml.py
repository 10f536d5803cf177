"""GPUs as NVIDIA's driver knows them, through nvidia-ml-py.

The library is opened when asked, and every call may fail: old drivers lack calls, containers
hide GPUs. What fails is left out. `library` is the module pynvml, or what a test puts in its place.

NVML's numbers are in PCI order and differ from CUDA's where CUDA_VISIBLE_DEVICES says so; the PCI
address joins the two.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from braid.topo.facts import CPU, SWITCH, Gpu, GpuLink, Path, PathKind, PcieLink, PeerAccess
from braid.topo.numbers import address
from braid.topo.tables import pcie_speed

Library: TypeAlias = Any
Handle: TypeAlias = Any

# NVML's numbers, which never change: nvml.h.
_MOST_LINKS = 36
_REMOTE_IS_GPU, _REMOTE_IS_PROCESSOR, _REMOTE_IS_SWITCH = 0, 1, 2
_HIDDEN_ADDRESS = "ffffffff"
_READ, _WRITE = 0, 1
_P2P_WORDS = (
    "ok",
    "chipset",
    "gpu",
    "topology",
    "disabled by registry",
    "not supported",
    "unknown",
)
_LEVELS: dict[int, PathKind] = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
_C2C_COUNT, _C2C_MBPS = 170, 172


@dataclass
class Seen:
    """What NVML told."""

    driver: str = ""
    gpus: list[Gpu] = field(default_factory=list)
    pcie: dict[str, PcieLink] = field(default_factory=dict)
    """By GPU."""
    links: list[GpuLink] = field(default_factory=list)
    paths: list[Path] = field(default_factory=list)
    peers: list[PeerAccess] = field(default_factory=list)


@contextmanager
def opened(library: Library) -> Iterator[Library]:
    """The library between init and shutdown."""
    library.nvmlInit()
    try:
        yield library
    finally:
        library.nvmlShutdown()


def find_library() -> Library | None:
    """pynvml, or None where the package is not installed."""
    try:
        import pynvml
    except ImportError:
        return None
    return pynvml


class Reader:
    """Asks one library that is open."""

    def __init__(self, library: Library) -> None:
        self._nvml = library
        count = self._ask(library.nvmlDeviceGetCount) or 0
        handles = (self._ask(library.nvmlDeviceGetHandleByIndex, i) for i in range(count))
        self._handles = {
            f"GPU{i}": handle for i, handle in enumerate(handles) if handle is not None
        }

    def read(self) -> Seen:
        """Everything."""
        seen = Seen(_text(self._ask(self._nvml.nvmlSystemGetDriverVersion)))
        for name, handle in self._handles.items():
            seen.gpus.append(self._gpu(name, handle))
            seen.pcie[name] = self._pcie(handle)
        at = {gpu.pci: gpu.name for gpu in seen.gpus}
        for name, handle in self._handles.items():
            seen.links += self._links(name, handle, at)
        seen.links = _once(seen.links)
        seen.paths, seen.peers = self._pairs()
        return seen

    def _ask(self, function: Callable[..., Any] | None, *arguments: object) -> Any:  # noqa: ANN401
        """The answer, or None when the driver has none."""
        try:
            return function(*arguments) if function is not None else None
        except self._nvml.NVMLError:
            return None

    def _call(self, name: str, *arguments: object) -> Any:  # noqa: ANN401
        """_ask() by name, for calls that older packages lack."""
        return self._ask(getattr(self._nvml, name, None), *arguments)

    def _gpu(self, name: str, handle: Handle) -> Gpu:
        capability = self._call("nvmlDeviceGetCudaComputeCapability", handle)
        memory = self._call("nvmlDeviceGetMemoryInfo", handle)
        numa = self._call("nvmlDeviceGetNumaNodeId", handle)
        return Gpu(
            name,
            model=_text(self._call("nvmlDeviceGetName", handle)),
            uuid=_text(self._call("nvmlDeviceGetUUID", handle)),
            arch=f"sm_{capability[0]}{capability[1]}" if capability else "",
            pci=self._address(self._call("nvmlDeviceGetPciInfo", handle)),
            memory_gib=round(memory.total / 2**30, 1) if memory else None,
            memory_numa=numa if isinstance(numa, int) and 0 <= numa < 1 << 20 else None,
            mig=self._instances(handle),
        )

    def _address(self, pci: Any) -> str | None:  # noqa: ANN401
        return address(_text(pci.busId)) if pci is not None else None

    def _instances(self, handle: Handle) -> list[str]:
        mode = self._call("nvmlDeviceGetMigMode", handle)
        if not mode or not mode[0]:
            return []
        most = self._call("nvmlDeviceGetMaxMigDeviceCount", handle) or 0
        found = (self._call("nvmlDeviceGetMigDeviceHandleByIndex", handle, i) for i in range(most))
        names = [_text(self._call("nvmlDeviceGetName", one)) for one in found if one is not None]
        return [name.rpartition("MIG ")[2] for name in names] or ["enabled, no instances"]

    def _pcie(self, handle: Handle) -> PcieLink:
        speeds = [
            pcie_speed(self._call(f"nvmlDeviceGet{which}PcieLinkGeneration", handle) or 0)
            for which in ("Curr", "Max")
        ]
        widths = [
            self._call(f"nvmlDeviceGet{which}PcieLinkWidth", handle) or 0
            for which in ("Curr", "Max")
        ]
        return PcieLink(speeds[0], widths[0], speeds[1], widths[1])

    def _links(self, name: str, handle: Handle, at: dict[str | None, str]) -> Iterator[GpuLink]:
        """The link count of a GPU is found by asking until the driver refuses."""
        up: dict[str, int] = {}
        down = 0
        for i in range(_MOST_LINKS):
            state = self._call("nvmlDeviceGetNvLinkState", handle, i)
            if state is None:
                break
            if not state:
                down += 1
                continue
            if far := self._far_end(handle, i, at):
                up[far] = up.get(far, 0) + 1
        # A GPU without any active link has no NVLink in use at all: PCIe cards without a bridge.
        for far, count in up.items():
            yield GpuLink(name, far, "nvlink", count, inactive=down)
        yield from self._link_to_cpu(name, handle)

    def _far_end(self, handle: Handle, link: int, at: dict[str | None, str]) -> str | None:
        """None: a GPU that this container does not show. What hides, are switches."""
        pci = self._call("nvmlDeviceGetNvLinkRemotePciInfo", handle, link)
        kind = self._call("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
        hidden = pci is not None and _text(pci.busId).lower().startswith(_HIDDEN_ADDRESS)
        if kind == _REMOTE_IS_SWITCH or hidden:
            return SWITCH
        if kind == _REMOTE_IS_PROCESSOR:
            return CPU
        here = self._address(pci)
        return at.get(here, None if kind == _REMOTE_IS_GPU and here else SWITCH)

    def _link_to_cpu(self, name: str, handle: Handle) -> Iterator[GpuLink]:
        values = self._call("nvmlDeviceGetFieldValues", handle, [_C2C_COUNT, _C2C_MBPS]) or []
        good = [value.value.uiVal for value in values if value.nvmlReturn == 0]
        if len(good) == 2 and 0 < good[0] < 1024:
            yield GpuLink(name, CPU, "c2c", good[0], good[1] / 1000 or None)

    def _pairs(self) -> tuple[list[Path], list[PeerAccess]]:
        paths, peers = [], []
        names = list(self._handles)
        for i, a in enumerate(names):
            for b in names[i + 1 :]:
                one, other = self._handles[a], self._handles[b]
                level = self._call("nvmlDeviceGetTopologyCommonAncestor", one, other)
                if (kind := _LEVELS.get(level)) is not None:
                    paths.append(Path(a, b, kind))
                read, write = (
                    self._call("nvmlDeviceGetP2PStatus", one, other, what)
                    for what in (_READ, _WRITE)
                )
                if read is not None and write is not None:
                    peers.append(PeerAccess(a, b, _p2p(read), _p2p(write)))
        return paths, peers


def _p2p(status: int) -> str:
    return _P2P_WORDS[status] if 0 <= status < len(_P2P_WORDS) else "unknown"


def _text(value: str | bytes | None) -> str:
    """Older packages answer bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value or ""


def _once(links: list[GpuLink]) -> list[GpuLink]:
    """A link between two GPUs is told by both; the first one's word stays."""
    seen: set[frozenset[str]] = set()
    kept = []
    for link in links:
        ends = frozenset((link.a, link.b))
        if link.b in (SWITCH, CPU) or ends not in seen:
            kept.append(link)
            seen.add(ends)
    return kept
