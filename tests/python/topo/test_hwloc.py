"""hwloc's XML."""

import pytest

from braid.topo.errors import BadTopology
from braid.topo.read import load, read_text


def test_laptop(fixture_path):
    machine = load(fixture_path("laptop.xml"))
    assert machine.name == "laptop"
    assert machine.cpu.sockets == 1
    assert [(n.cpus, n.memory_gib) for n in machine.numa] == [("0-11", 15.4)]
    assert not machine.gpus  # a display adapter runs no collective
    assert [(nic.name, nic.kind) for nic in machine.nics] == [("wlp0s20f3", "ethernet")]
    kinds = {device.address: device.kind for device in machine.pci}
    assert kinds == {
        "0000:00:02.0": "gpu",
        "0000:00:06.0": "root_port",
        "0000:01:00.0": "nvme",
        "0000:00:14.3": "nic",
    }
    nvme = next(device for device in machine.pci if device.kind == "nvme")
    assert (nvme.parent, nvme.host_bridge) == ("0000:00:06.0", "pci0000:00")
    assert round(nvme.link.gbps, 1) == 7.9


def test_rdma_device_names_the_nic():
    osdevs = '<object type="OSDev" name="ib0" osdev_type="2"/>'
    osdevs += '<object type="OSDev" name="mlx5_0" osdev_type="3"/>'
    pci = (
        f'<object type="PCIDev" pci_busid="0000:01:00.0" pci_type="0207 [15b3:1021] [] 00">{osdevs}'
    )
    machine = read_text(
        f'<topology version="2.0"><object type="Machine">{pci}</object></object></topology>'
    )
    assert [(n.name, n.kind, n.interfaces) for n in machine.nics] == [
        ("mlx5_0", "infiniband", ["ib0"])
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('<topology version="1.0"/>', "hwloc XML of version 1.0"),
        ('<topology version="2.0"/>', "neither NUMA nodes nor PCI devices"),
        ('<topology version="2.0"><object type="PCIDev"/></topology>', "busid ''"),
        ('<topology version="2.0"><object', "cut off or damaged"),
    ],
)
def test_refused(text, said):
    with pytest.raises(BadTopology, match=said):
        read_text(text)
