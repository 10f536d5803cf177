"""NVIDIA's driver, played by a fake: switches, direct links, refusals, what old drivers lack."""

# ruff: noqa: N802, N818 - the fake has the names of the library

from types import SimpleNamespace

import pytest

from braid.topo.facts import CPU, SWITCH
from braid.topo.look import View
from braid.topo.rates import rates
from braid.topo.read import live, nvml
from braid.topo.verdicts import verdicts


class Refused(Exception):
    """What pynvml raises."""


class FakeNvml:
    """pynvml for some GPUs. links: per GPU, the far end of each link, None for one that is down."""

    NVMLError = Refused

    def __init__(self, addresses, links=(), name="NVIDIA H200", has_driver=True):
        self.addresses, self.links, self.name, self.has_driver = addresses, links, name, has_driver
        self.is_open = False
        self.p2p = 0

    def nvmlInit(self):
        if not self.has_driver:
            raise Refused("driver not loaded")
        self.is_open = True

    def nvmlShutdown(self):
        self.is_open = False

    def nvmlSystemGetDriverVersion(self):
        return b"580.95.05"  # bytes, as old packages answer

    def nvmlDeviceGetCount(self):
        return len(self.addresses)

    def nvmlDeviceGetHandleByIndex(self, index):
        return index

    def nvmlDeviceGetName(self, handle):
        return self.name if isinstance(handle, int) else f"{self.name} MIG 1g.18gb"

    def nvmlDeviceGetUUID(self, handle):
        return f"GPU-{handle}"

    def nvmlDeviceGetPciInfo(self, handle):
        return SimpleNamespace(busId=f"0000{self.addresses[handle]}".upper())

    def nvmlDeviceGetCudaComputeCapability(self, _):
        return (9, 0)

    def nvmlDeviceGetMemoryInfo(self, _):
        return SimpleNamespace(total=141 << 30)

    def nvmlDeviceGetCurrPcieLinkGeneration(self, _):
        return 1

    def nvmlDeviceGetMaxPcieLinkGeneration(self, _):
        return 5

    def nvmlDeviceGetCurrPcieLinkWidth(self, _):
        return 8

    def nvmlDeviceGetMaxPcieLinkWidth(self, _):
        return 16

    def _far(self, handle, link):
        if not self.links or link >= len(self.links[handle]):
            raise Refused("not supported")
        return self.links[handle][link]

    def nvmlDeviceGetNvLinkState(self, handle, link):
        return int(self._far(handle, link) is not None)

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle, link):
        return {SWITCH: 2, CPU: 1}.get(self._far(handle, link), 0)

    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle, link):
        far = self._far(handle, link)
        if far == SWITCH:
            raise Refused("hidden")
        known = isinstance(far, int) and far < len(self.addresses)
        return SimpleNamespace(busId=f"0000{self.addresses[far]}" if known else "00000004:00:00.1")

    def nvmlDeviceGetTopologyCommonAncestor(self, a, b):
        return 40 if abs(a - b) == 1 else 50

    def nvmlDeviceGetP2PStatus(self, _, __, ___):
        return self.p2p


@pytest.fixture
def eight(fake_sys):
    """Eight GPUs on PCI without bridges, as a virtual machine shows them."""
    fake_sys.intel()
    fake_sys.numa(0, "0-95", 1024, 0)
    addresses = [f"0000:0{i}:00.0" for i in range(1, 9)]
    for address in addresses:
        fake_sys.pci("pci0000:00", address, code="0x030200", numa=-1)
    return fake_sys.root, addresses


def test_switched(eight):
    root, addresses = eight
    library = FakeNvml(addresses, [[SWITCH] * 18] * 8)
    machine = live.read(root, library)
    assert not library.is_open
    view = View(machine)
    assert machine.source.format == "live"
    assert machine.source.tools["driver"] == "580.95.05"
    assert [gpu.model for gpu in machine.gpus] == ["NVIDIA H200"] * 8
    assert machine.gpus[3].pci == addresses[3]
    assert view.links_between("GPU0", "GPU7") == 18
    assert view.path("GPU0", "GPU1") == "NODE"
    assert next(r for r in rates(machine) if r.kind == "nvlink").theoretical_gbps == 450
    assert len(machine.peers) == 28
    pcie = next(r for r in rates(machine) if r.kind == "pcie")
    assert (pcie.name, pcie.theoretical_gbps) == ("PCIe 5 x8", 31.508)  # idle now: generation 1
    codes = {verdict.code for verdict in verdicts(machine)}
    assert {"pcie-width", "pcie-speed"} <= codes
    assert "no-p2p" not in codes


def test_links_down_and_direct(eight):
    """Two GPUs with three links between them, of which one is down."""
    root, addresses = eight
    library = FakeNvml(addresses[:2], [[1, 1, None], [0, 0, None]], "NVIDIA A100-PCIE-40GB")
    machine = live.read(root, library)
    assert [(x.a, x.b, x.count, x.inactive) for x in machine.gpu_links] == [("GPU0", "GPU1", 2, 1)]
    assert "nvlink-down" in {verdict.code for verdict in verdicts(machine)}


def test_links_that_a_model_never_has(eight):
    """An H800 has eight links up, and ten that were switched off in the factory."""
    root, addresses = eight
    library = FakeNvml(addresses, [[SWITCH] * 8 + [None] * 10] * 8, "NVIDIA H800")
    machine = live.read(root, library)
    assert next(r for r in rates(machine) if r.kind == "nvlink").theoretical_gbps == 200
    assert "nvlink-down" not in {verdict.code for verdict in verdicts(machine)}


def test_the_library_has_what_is_asked():
    """Every call and constant by its name in nvidia-ml-py."""
    pynvml = pytest.importorskip("pynvml")
    asked = {name for name in dir(FakeNvml) if name.startswith("nvml")}
    asked |= {"nvmlDeviceGetMigMode", "nvmlDeviceGetFieldValues", "nvmlDeviceGetNumaNodeId"}
    asked |= {"nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetMigDeviceHandleByIndex"}
    assert asked <= set(dir(pynvml))
    assert pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH == nvml._REMOTE_IS_SWITCH
    assert pynvml.NVML_NVLINK_MAX_LINKS <= nvml._MOST_LINKS
    assert max(nvml._LEVELS) == pynvml.NVML_TOPOLOGY_SYSTEM
    assert (pynvml.NVML_FI_DEV_C2C_LINK_COUNT, pynvml.NVML_FI_DEV_C2C_LINK_GET_MAX_BW) == (
        nvml._C2C_COUNT,
        nvml._C2C_MBPS,
    )


def test_refused_peers(eight):
    root, addresses = eight
    library = FakeNvml(addresses[:2], name="NVIDIA GeForce RTX 4090")
    library.p2p = 5
    machine = live.read(root, library)
    said = {verdict.code: verdict.text for verdict in verdicts(machine)}
    assert "not supported" in said["no-p2p"]


def test_links_to_the_cpu(eight):
    root, addresses = eight
    library = FakeNvml(addresses[:1], name="NVIDIA GB200")
    answers = [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=n)) for n in (5, 44712)]
    library.nvmlDeviceGetFieldValues = lambda _, __: answers
    machine = live.read(root, library)
    assert [(x.b, x.count, x.gbps_each) for x in machine.gpu_links] == [(CPU, 5, 44.712)]


def test_instances(eight):
    root, addresses = eight
    library = FakeNvml(addresses[:1])
    library.nvmlDeviceGetMigMode = lambda _: (1, 1)
    library.nvmlDeviceGetMaxMigDeviceCount = lambda _: 2
    library.nvmlDeviceGetMigDeviceHandleByIndex = lambda _, i: f"instance {i}"
    assert live.read(root, library).gpus[0].mig == ["1g.18gb", "1g.18gb"]


def test_no_driver(eight):
    """GPUs on PCI and no driver: said once, and the tree is still there."""
    root, addresses = eight
    machine = live.read(root, FakeNvml(addresses, has_driver=False))
    assert machine.source.gaps == ["nvml: driver not loaded"]
    assert len(machine.gpus) == 8


def test_no_gpu_and_no_driver_is_no_gap(server):
    assert live.read(server.root, FakeNvml([], has_driver=False)).source.gaps == []


def test_amd_links_are_a_gap(fake_sys):
    fake_sys.pci("pci0000:00", "0000:01:00.0", code="0x120000", vendor="0x1002")
    machine = live.read(fake_sys.root, FakeNvml([], has_driver=False))
    assert len(machine.gpus) == 1
    assert "rocm-smi --showtopo" in machine.source.gaps[0]


def test_no_package(eight, monkeypatch):
    monkeypatch.setattr(nvml, "find_library", lambda: None)
    assert live.read(eight[0]).source.gaps == ["nvml: nvidia-ml-py is not installed"]


def test_gpus_that_pci_hides(fake_sys):
    """A container that shows no /sys/bus/pci."""
    fake_sys.numa(0, "0-3", 8, 0)
    machine = live.read(fake_sys.root, FakeNvml(["0000:01:00.0", "0000:02:00.0"]))
    assert [gpu.pci for gpu in machine.gpus] == [None, None]
    assert View(machine).path("GPU0", "GPU1") == "NODE"


def test_links_to_gpus_that_a_container_hides(eight):
    """Two of a cube mesh's eight, without a link between them: they seemed to share a switch."""
    root, addresses = eight
    elsewhere = [7, 7, 6, 6, 5, 5]
    view = View(live.read(root, FakeNvml(addresses[:2], [elsewhere, elsewhere])))
    assert view.machine.gpu_links == []
    assert view.links_between("GPU0", "GPU1") == 0
    some = live.read(root, FakeNvml(addresses[:2], [[1, 1, 7, 7], [0, 0, 6, 6]]))
    assert [(x.a, x.b, x.count) for x in some.gpu_links] == [("GPU0", "GPU1", 2)]


def test_links_into_a_processor(eight):
    root, addresses = eight
    machine = live.read(root, FakeNvml(addresses[:2], [[1, 1, 1, CPU, CPU, CPU], [0] * 3]))
    assert [(x.a, x.b, x.kind, x.count) for x in machine.gpu_links] == [
        ("GPU0", "GPU1", "nvlink", 3),
        ("GPU0", CPU, "nvlink", 3),
    ]
    assert not View(machine).switch_links("GPU0")
