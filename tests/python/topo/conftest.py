"""Machines for tests: saved ones under fixtures/topo, and trees of /sys that are made up here."""

from pathlib import Path

import pytest

FIXTURES = Path(__file__).parents[1] / "fixtures" / "topo"
_SPEEDS = {3: "8.0 GT/s PCIe", 4: "16.0 GT/s PCIe", 5: "32.0 GT/s PCIe"}
BRIDGE, GPU, ETHERNET, INFINIBAND, NVME = "0x060400", "0x030200", "0x020000", "0x020700", "0x010802"


class FakeSys:
    """A folder that looks like a machine's /sys and /proc."""

    def __init__(self, root):
        self.root = root

    def write(self, path, text):
        """One file."""
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text if isinstance(text, bytes) else f"{text}\n".encode())

    def link(self, path, target):
        """A link to another path of this machine."""
        here = self.root / path.lstrip("/")
        here.parent.mkdir(parents=True, exist_ok=True)
        here.symlink_to(self.root / target.lstrip("/"))

    def numa(self, index, cpus, gib, socket):
        """A NUMA node whose CPUs are all of one socket."""
        base = f"/sys/devices/system/node/node{index}"
        self.write(f"{base}/cpulist", cpus)
        self.write(f"{base}/meminfo", f"Node {index} MemTotal:  {gib << 20} kB")
        first = cpus.partition("-")[0].partition(",")[0]
        self.write(f"/sys/devices/system/cpu/cpu{first}/topology/physical_package_id", socket)

    def pci(self, *chain, code, vendor="0x10de", link=(5, 16), best=None, numa=0, config=b""):
        """A device below its bridges: "pci0000:15", "0000:15:01.0", ..., the device."""
        path = "/sys/devices/" + "/".join(chain)
        for name, (generation, width) in (("current", link), ("max", best or link)):
            self.write(f"{path}/{name}_link_speed", _SPEEDS[generation])
            self.write(f"{path}/{name}_link_width", width)
        self.write(f"{path}/class", code)
        self.write(f"{path}/vendor", vendor)
        self.write(f"{path}/device", "0x2335")
        self.write(f"{path}/numa_node", numa)
        self.write(f"{path}/config", config or bytes(64))
        self.link(f"/sys/bus/pci/devices/{chain[-1]}", path)
        return path

    def rdma(self, name, device, rate="400 Gb/sec (4X NDR)", layer="InfiniBand", state="4: ACTIVE"):
        """An RDMA device on a PCI device."""
        base = f"/sys/class/infiniband/{name}"
        self.link(f"{base}/device", device)
        for file, text in (("rate", rate), ("link_layer", layer), ("state", state)):
            self.write(f"{base}/ports/1/{file}", text)

    def net(self, name, device=None, mbit=10000, state="up"):
        """A network interface."""
        base = f"/sys/class/net/{name}"
        if device:
            self.link(f"{base}/device", device)
        self.write(f"{base}/speed", mbit)
        self.write(f"{base}/operstate", state)

    def default_route(self, interface):
        """Where the outside world is."""
        self.write("/proc/net/route", f"Iface Destination Gateway\n{interface} 00000000 0102A8C0")

    def intel(self, model=143):
        """The processors' own description."""
        text = f"vendor_id\t: GenuineIntel\nmodel\t\t: {model}\nmodel name\t: Intel Xeon 8480C"
        self.write("/proc/cpuinfo", text)


def acs(control):
    """Configuration space with one extended capability: access control, set to `control`."""
    head = (0x000D | 1 << 16).to_bytes(4, "little")
    return bytes(0x100) + head + bytes(2) + control.to_bytes(2, "little") + bytes(64)


@pytest.fixture
def fake_sys(tmp_path):
    """An empty machine."""
    return FakeSys(tmp_path / "machine")


@pytest.fixture
def server(tmp_path):
    """Two sockets, no GPU: a front-end NIC, a management NIC, a disk."""
    fake_sys = FakeSys(tmp_path / "server")
    fake_sys.intel()
    fake_sys.numa(0, "0-55,112-167", 512, 0)
    fake_sys.numa(1, "56-111,168-223", 512, 1)
    port = "0000:15:01.0"
    fake_sys.pci("pci0000:15", port, code=BRIDGE, vendor="0x8086", link=(4, 16))
    nic = fake_sys.pci(
        "pci0000:15", port, "0000:16:00.0", code=ETHERNET, vendor="0x8086", link=(4, 16)
    )
    slow = fake_sys.pci("pci0000:00", "0000:00:1f.6", code=ETHERNET, vendor="0x8086", link=(3, 1))
    fake_sys.pci("pci0000:80", "0000:81:00.0", code=NVME, vendor="0x144d", link=(4, 4), numa=1)
    fake_sys.net("ens1f0", nic, 100000)
    fake_sys.net("eno1", slow, 1000)
    fake_sys.net("lo", None, 0)
    fake_sys.default_route("ens1f0")
    return fake_sys


@pytest.fixture
def box(tmp_path):
    """Two switches on two sockets, each with a GPU and a NIC, and ACS as `control` says."""

    def make(gpu_link=(5, 16), control=0):
        fake_sys = FakeSys(tmp_path / "box")
        fake_sys.intel(207)
        fake_sys.numa(0, "0-47", 1024, 0)
        fake_sys.numa(1, "48-95", 1024, 1)
        for i, bus in enumerate((0x15, 0x85)):
            top = [f"pci0000:{bus:02x}", f"0000:{bus:02x}:01.0"]
            up, port = f"0000:{bus + 1:02x}:00.0", f"0000:{bus + 2:02x}:0{{}}.0"
            fake_sys.pci(*top, code=BRIDGE, vendor="0x8086", numa=i, config=acs(control))
            fake_sys.pci(*top, up, code=BRIDGE, vendor="0x1000", numa=i)
            for n in range(2):
                fake_sys.pci(*top, up, port.format(n), code=BRIDGE, vendor="0x1000", numa=i)
            gpu = [*top, up, port.format(0), f"0000:{bus + 3:02x}:00.0"]
            fake_sys.pci(*gpu, code=GPU, link=gpu_link if i else (5, 16), best=(5, 16), numa=i)
            nic = [*top, up, port.format(1), f"0000:{bus + 4:02x}:00.0"]
            device = fake_sys.pci(*nic, code=INFINIBAND, vendor="0x15b3", numa=i)
            fake_sys.rdma(f"mlx5_{i}", device)
        return fake_sys

    return make


@pytest.fixture(params=sorted(path.name for path in FIXTURES.iterdir()))
def saved(request):
    """Every saved machine, one after the other."""
    return FIXTURES / request.param


@pytest.fixture
def fixture_path():
    """The path of one saved machine."""
    return lambda name: FIXTURES / name
