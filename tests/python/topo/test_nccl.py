"""NCCL's XML: nested switches, hidden ones, networks without PCI, and files that are none."""

import pytest

from braid.topo.errors import BadTopology
from braid.topo.facts import CPU, SWITCH
from braid.topo.look import View
from braid.topo.read import load, read_text


def system(body, version="1"):
    """A file with one CPU."""
    cpu = '<cpu numaid="0" affinity="000000ff" arch="x86_64" vendor="GenuineIntel" modelid="143">'
    return f'<system version="{version}">{cpu}{body}</cpu></system>'


def gpu(bus, dev, inside="", sm=90):
    """A GPU on PCI."""
    at = f'busid="0000:{bus}:00.0" class="0x030200" vendor="0x10de"'
    link = 'link_speed="32.0 GT/s PCIe" link_width="16"'
    return f'<pci {at} {link}><gpu dev="{dev}" sm="{sm}" rank="{dev}">{inside}</gpu></pci>'


def test_switches(fixture_path):
    machine = load(fixture_path("h100_x8.xml"))
    view = View(machine)
    assert view.path("GPU0", "mlx5_0") == "PIX"
    assert view.path("GPU0", "mlx5_1") == "PHB"
    assert view.path("GPU0", "mlx5_4") == "SYS"
    assert view.switch_links("GPU3") == 18
    assert [node.cpus for node in machine.numa] == ["0-51,104-155", "52-103,156-207"]
    assert machine.cpu.socket_gbps == 22
    kinds = {nic.name: nic.kind for nic in machine.nics}
    assert kinds["mlx5_0"] == "infiniband"
    assert kinds["ens1f0"] == "ethernet"


def test_virtual_machine(fixture_path):
    """Hidden switches, a NIC without PCI under both CPUs, lanes that are not told."""
    machine = load(fixture_path("h200_vm_x8.xml"))
    assert [nic.name for nic in machine.nics] == ["eth0"]
    assert machine.nics[0].gbit == 10
    assert machine.nics[0].numa is None
    assert {link.b for link in machine.gpu_links} == {SWITCH}
    assert View(machine).path("GPU0", "GPU1") == "PHB"


def test_many_nics(fixture_path):
    for name, count, gbit in (("p5_x8.xml", 32, 100), ("p5en_x8.xml", 16, 200)):
        machine = load(fixture_path(name))
        assert len(machine.nics) == count
        assert {(nic.kind, nic.gbit) for nic in machine.nics} == {("efa", gbit)}
        assert sum(nic.gbit for nic in machine.nics) == 3200


def test_direct_links_count_once():
    one = '<nvlink target="0000:02:00.0" count="4" tclass="0x030200"/>'
    other = '<nvlink target="0000:01:00.0" count="4" tclass="0x030200"/>'
    machine = read_text(system(gpu("01", 0, one) + gpu("02", 1, other)))
    assert [(x.a, x.b, x.count) for x in machine.gpu_links] == [("GPU0", "GPU1", 4)]
    assert View(machine).num_links("GPU1") == 4


def test_link_told_by_one_end():
    link = '<nvlink target="0000:01:00.0" count="2" tclass="0x030200"/>'
    machine = read_text(system(gpu("01", 0) + gpu("02", 1, link)))
    assert View(machine).links_between("GPU0", "GPU1") == 2


def test_chip_to_chip_and_xgmi():
    grace = read_text(system(gpu("01", 0, '<c2c bw="44712" count="5"/>', 100)))
    assert [(x.b, x.kind, x.count, x.gbps_each) for x in grace.gpu_links] == [
        (CPU, "c2c", 5, 44.712)
    ]
    link = '<xgmi target="0000:02:00.0" count="1" tclass="0x038000"/>'
    amd = read_text(system(gpu("01", 0, link) + gpu("02", 1)))
    assert [(x.kind, x.count) for x in amd.gpu_links] == [("xgmi", 1)]


def test_several_ranks_on_one_gpu():
    ranks = '<gpu dev="0" sm="90" rank="0"/><gpu dev="0" sm="90" rank="1"/>'
    machine = read_text(system(f'<pci busid="0000:01:00.0" class="0x030200">{ranks}</pci>'))
    assert [gpu.name for gpu in machine.gpus] == ["GPU0"]


BOMB = '<!DOCTYPE x [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;">]><system version="1">&b;</system>'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (system(gpu("01", 0))[:-30], "cut off or damaged"),
        (system(gpu("01", 0), version="7"), "version 7; braid reads 1 and 2"),
        (system(""), "0 GPUs"),
        ('<system version="1"/>', "0 GPUs"),
        ("<html><body/></html>", "root is <html>"),
        (BOMB, "defines entities"),
        (system("<pci>" * 100 + "</pci>" * 100), "more than 64 deep"),
        (system('<pci busid="what" class="0x060400"/>'), "busid 'what'"),
        (system('<pci busid="0000:01:00.0"><gpu dev="x"/></pci>'), "the number 'x'"),
        (system(gpu("01", 0) + gpu("01", 1)), "0000:01:00.0 is there twice"),
        (system(gpu("01", 0, '<nvlink target="" count="9999" tclass="0x068000"/>')), "9999"),
    ],
)
def test_refused(text, said):
    with pytest.raises(BadTopology, match=said):
        read_text(text)
