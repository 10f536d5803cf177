"""NCCL_TOPO_FILEs as clouds and vendors publish them: partial, of version 2, repeated, merged."""

import time

import pytest

from braid.topo.document import document
from braid.topo.errors import BadTopology
from braid.topo.facts import CPU, SWITCH
from braid.topo.look import View
from braid.topo.pci_ids import gpu_name
from braid.topo.rates import rates
from braid.topo.read import load, read_text
from braid.topo.tables import model_known, pcie_of_model
from braid.topo.verdicts import verdicts


def system(body, version="1", numa=(0,), hosts=("",)):
    """A file whose every CPU has `body`."""
    cpus = "".join(
        f'<cpu host_hash="{host}" numaid="{n}" affinity="ff" arch="x86_64">{body}</cpu>'
        for host in hosts
        for n in numa
    )
    return f'<system version="{version}">{cpus}</system>'


def pci(bus, inside="", code="0x030200", vendor="0x10de", device="", link='link_width="16"'):
    """A device on PCI."""
    at = f'busid="0000:{bus}:00.0" class="{code}" vendor="{vendor}" device="{device}"'
    return f'<pci {at} link_speed="16 GT/s" {link}>{inside}</pci>'


def gpu(dev, inside="", **more):
    """What stands below a GPU's PCI device."""
    also = "".join(f' {name}="{value}"' for name, value in more.items())
    return f'<gpu dev="{dev}" sm="90" rank="{dev}"{also}>{inside}</gpu>'


def net(name, **more):
    """An interface."""
    also = "".join(f' {key}="{value}"' for key, value in more.items())
    return f'<nic><net name="{name}"{also}/></nic>'


def said(machine):
    """What the source could not tell, as one text."""
    return "; ".join(machine.source.gaps)


def test_devices_by_class_are_counted(fixture_path):
    machine = load(fixture_path("cloud_by_class_x8.xml"))
    assert [gpu.name for gpu in machine.gpus] == [f"GPU{i}" for i in range(8)]
    assert [gpu.pci for gpu in machine.gpus] == [f"{0x21 + i:04x}:00:00.0" for i in range(8)]
    assert [gpu.numa for gpu in machine.gpus] == [1] * 4 + [0] * 4
    assert len(machine.nics) == 8
    assert {nic.kind for nic in machine.nics} == {"infiniband"}
    assert set(document(machine).derived.roles.values()) == {"backend"}
    assert View(machine).path("GPU0", machine.nics[4].name) == "PIX"
    assert "a partial NCCL_TOPO_FILE: 8 GPUs and 8 NICs" in said(machine)


def test_device_numbers_name_the_model(fixture_path):
    machine = load(fixture_path("cloud_by_number_x8.xml"))
    assert {gpu.model for gpu in machine.gpus} == {"NVIDIA A100-SXM4-80GB"}
    assert [nic.kind for nic in machine.nics] == ["efa"] * 4
    assert "8 GPUs and 4 NICs" in said(machine)


def test_bridges_alone_are_a_partial_file(fixture_path):
    machine = load(fixture_path("cloud_bridges_x0.xml"))
    assert (machine.gpus, machine.nics, len(machine.pci)) == ([], [], 5)
    assert "a partial NCCL_TOPO_FILE: 5 PCI devices without a class" in said(machine)
    texts = [verdict.text for verdict in document(machine).derived.verdicts]
    assert "there is no GPU" not in texts
    only_switches = read_text(system(pci("01", code="0x060400")))
    assert "a partial NCCL_TOPO_FILE: it has no GPU" in said(only_switches)


def test_rccl_writes_version_2(fixture_path):
    machine = load(fixture_path("mi300x_rccl_x4.xml"))
    assert [gpu.model for gpu in machine.gpus] == ["AMD Instinct MI300X"] * 4
    assert {gpu.arch for gpu in machine.gpus} == {"gfx942"}
    assert len(machine.gpu_links) == 6
    assert {nic.kind for nic in machine.nics} == {"roce"}
    assert sum(r.theoretical_gbps for r in rates(machine) if (r.a, r.kind) == ("GPU0", "xgmi")) == (
        3 * 64
    )
    assert View(machine).path("GPU1", "bnxt_re1") == "PXB"


@pytest.mark.parametrize(
    ("gcn", "arch"),
    [("906", "gfx906"), ("908", "gfx908"), ("910", "gfx90a"), ("gfx90a:sramecc+:xnack-", "gfx90a"),
     ("941", "gfx942"), ("gfx950", "gfx950"), ("", "")],
)  # fmt: skip
def test_architectures_of_amd(gcn, arch):
    """sm is the number of compute units there, and no architecture."""
    machine = read_text(system(pci("01", gpu(0, gcn=gcn), vendor="0x1002"), "2"))
    assert machine.gpus[0].arch == arch


@pytest.mark.parametrize("version", ["0", "3", "7", "two"])
def test_other_versions_are_refused(version):
    with pytest.raises(BadTopology, match=f"version {version}; braid reads 1 and 2"):
        read_text(system(pci("01", gpu(0)), version))


def test_links_that_end_at_the_gpu_itself():
    """Cards whose bridges a hypervisor does not show; PCIe is what is left, and is said."""
    own = [f'<nvlink target="0000:0{i}:00.0" count="12" tclass="0x030200"/>' for i in (1, 2)]
    parts = [pci(f"0{i}", gpu(i - 1, own[i - 1]), device="0x20b5", link="") for i in (1, 2)]
    machine = read_text(system("".join(parts)))
    assert machine.gpu_links == []
    assert "links of 2 GPUs end at the GPU itself" in said(machine)
    assert {(r.a, r.kind, r.theoretical_gbps) for r in rates(machine)} == {
        ("GPU0", "pcie", 31.508),
        ("GPU1", "pcie", 31.508),
    }


def test_a_switch_that_is_told_once_per_port():
    port = [pci("05", pci(f"1{i}", gpu(i)), "0x060400", "0x1000") for i in range(3)]
    machine = read_text(system(pci("04", "".join(port), "0x060400", "0x1000")))
    assert len(machine.gpus) == 3
    assert sum(device.kind == "switch" for device in machine.pci) == 2
    assert View(machine).path("GPU0", "GPU2") == "PIX"


def test_an_address_of_a_switch_and_of_a_nic():
    inside = pci("02", gpu(0)) + pci("01", net("mlx5_0", guid="0xaabbccdd1"), "0x020700", "0x15b3")
    machine = read_text(system(pci("01", inside, "0x060400", "0x1000")))
    assert (len(machine.gpus), len(machine.nics)) == (1, 1)
    assert "0000:01:00.0 is a switch and a nic" in said(machine)
    assert View(machine).path("GPU0", "mlx5_0") == "PIX"


def test_every_rank_calls_its_gpu_0():
    """Containers with one GPU each: the addresses tell them apart."""
    machine = read_text(system("".join(pci(f"{i:02x}", gpu(0)) for i in (9, 3, 17))))
    assert [(gpu.name, gpu.pci) for gpu in machine.gpus] == [
        ("GPU0", "0000:03:00.0"),
        ("GPU1", "0000:09:00.0"),
        ("GPU2", "0000:11:00.0"),
    ]


def test_gpus_without_a_number_take_the_free_ones():
    machine = read_text(system(pci("01", gpu(1)) + pci("02") + pci("03", "<gpu/>") + pci("04")))
    assert {gpu.pci[5:7]: gpu.name for gpu in machine.gpus} == {
        "01": "GPU1",
        "02": "GPU0",
        "03": "GPU2",
        "04": "GPU3",
    }


def test_one_host_of_several():
    """Where NVLink joins hosts, NCCL dumps them all, with the same addresses."""
    here = pci("01", gpu(0)) + pci("02", gpu(1))
    there = here.replace('rank="0"', 'rank="3"')
    text = system(there, hosts=("0xb",)) + system(here, hosts=("0xa",))
    machine = read_text(text.replace('</system><system version="1">', ""))
    assert [gpu.name for gpu in machine.gpus] == ["GPU0", "GPU1"]
    assert "of 2 hosts; this is the one of rank 0" in said(machine)


def test_parts_of_one_gpu_are_one():
    switch = '<nvlink target="fffffff:ff:ff.0" count="36" tclass="0x068000"/>'
    machine = read_text(system(pci("01", gpu(0, switch, mlopart=0) + gpu(0, switch, mlopart=1))))
    assert [(link.b, link.count) for link in machine.gpu_links] == [(SWITCH, 36)]


def test_links_into_a_power9():
    link = '<nvlink target="0004:00:00.0" count="3" tclass="0x068001"/>'
    machine = read_text(system(pci("01", gpu(0, link), device="0x1db1")))
    assert [(x.a, x.b, x.count) for x in machine.gpu_links] == [("GPU0", CPU, 3)]
    row = next(rate for rate in rates(machine) if rate.b == CPU and rate.kind == "c2c")
    assert (row.name, row.theoretical_gbps) == ("NVLink 2", 75)


@pytest.mark.parametrize(
    ("vendor", "code", "count"),
    [("", "0x030200", 1), ("0xffff", "0x030000", 1), ("0x10de", "0x030000", 1),
     ("0x10DE", "0x030200", 1), ("0x1a03", "0x030000", 0), ("0x1002", "0x030000", 0),
     ("0x1002", "0x120000", 1), ("0x1d94", "0x038000", 1), ("0x10de", "0x040300", 0)],
)  # fmt: skip
def test_which_classes_are_gpus(vendor, code, count):
    """A server's display adapter is none, a consumer's card is."""
    machine = read_text(system(pci("01", code=code, vendor=vendor) + pci("02", gpu(0))))
    assert len(machine.gpus) == count + 1


@pytest.mark.parametrize(
    ("name", "more", "vendor", "code", "kind"),
    [
        ("rdmap79s0", {"guid": "0", "port": "1", "gdr": "1"}, "", "0x020000", "efa"),
        ("rdmap80s0", {"guid": "0x1", "port": "1", "gdr": "1"}, "", "0x020000", "efa"),
        ("efa0", {"guid": "0x9", "gdr": "1"}, "0x1d0f", "0x020000", "efa"),
        ("ens5", {"guid": "0x0", "port": "0", "gdr": "0"}, "0x1d0f", "0x020000", "ethernet"),
        ("veth1", {"guid": "0x1", "port": "0", "gdr": "0"}, "0x1af4", "0x020000", "ethernet"),
        ("mlx5_0", {"guid": "0xa088c203", "port": "1"}, "0x15b3", "0x020000", "roce"),
        ("mlx5_0", {"guid": "0x0", "port": "1", "gdr": "1"}, "0x15b3", "0x020000", "roce"),
        ("mlx5_0", {"guid": "0xa088c203", "port": "1"}, "0x15b3", "0x020700", "infiniband"),
        ("cxi1", {"guid": "0x1", "port": "1", "gdr": "1"}, "0x17db", "0x020000", "unknown"),
        ("cxi0", {"guid": "0x0", "port": "1", "gdr": "1"}, "0x17db", "0x020000", "unknown"),
        ("ens1f0", {"guid": "0x0", "port": "1", "gdr": "0"}, "0x8086", "0x020000", "ethernet"),
    ],
)
def test_kinds_of_nics(name, more, vendor, code, kind):
    known = {"0x1d0f": "0xec20" if name == "ens5" else ""}.get(vendor, "")
    body = pci("01", gpu(0)) + pci("02", net(name, speed=100000, **more), code, vendor, known)
    assert [nic.kind for nic in read_text(system(body)).nics] == [kind]


def test_efa_whatever_its_number():
    """Device 0 has no guid; it is as much EFA, and the backend, as the others."""
    nics = "".join(
        pci(f"{i:02x}", net(f"rdmap{i}s0", dev=i, guid=i, port=1, gdr=1), "0x020000", "")
        for i in range(0x10)
    )
    machine = read_text(system(pci("f0", nics + pci("80", gpu(0)), "0x060400", "0xffff")))
    assert {nic.kind for nic in machine.nics} == {"efa"}
    assert set(document(machine).derived.roles.values()) == {"backend"}


def test_two_devices_that_nccl_made_one_of():
    body = pci("01", gpu(0)) + net("mlx5_0+mlx5_1", speed=400000, port=1, guid="0xae0f9c0003")
    machine = read_text(system(body, numa=(0, 1)).replace("0000:01", "0000:02", 1))
    assert [(nic.name, nic.gbit) for nic in machine.nics] == [("mlx5_0", 200), ("mlx5_1", 200)]


def test_ports_of_one_device_add_up():
    both = "".join(net("mlx4_0", speed=56000, port=i, guid="0xae0f9c0003") for i in (1, 2))
    machine = read_text(system(pci("01", gpu(0)) + pci("02", both, "0x020700", "0x15b3")))
    assert [(nic.name, nic.ports, nic.gbit) for nic in machine.nics] == [("mlx4_0", 2, 112)]


def test_a_speed_in_kbit():
    body = pci("01", gpu(0)) + pci("02", net("cxi0", speed=200000000, gdr=1), "0x020000", "0x17db")
    assert read_text(system(body)).nics[0].gbit == 200


def test_devices_without_class_are_told_by_what_is_below():
    bridge = '<pci busid="0000:04:00.0"><pci busid="0000:05:00.0">{}</pci></pci>'
    machine = read_text(system(bridge.format(gpu(0)) + pci("06", gpu(1))))
    assert [device.kind for device in machine.pci] == ["switch", "gpu", "gpu"]
    assert "links between GPUs are not all told: a partial NCCL_TOPO_FILE" in said(machine)
    assert len(machine.source.gaps) == 1


FAR_APART = [pci("01", gpu(0)), pci("02", gpu(1)), pci("03", gpu(2))]


def codes(machine):
    return {verdict.code: verdict.text for verdict in verdicts(machine)}


def test_gpu_elements_without_links_and_numbers_tell_of_no_links():
    """AWS's file for eight H100 has both: they were said to meet in the CPU alone."""
    machine = read_text(system("".join(FAR_APART)))
    assert "links between GPUs are not all told" in said(machine)
    assert "pcie-trees" not in codes(machine)
    dumped = read_text(system("".join(each.replace('device=""', 'device="0x2330"')
                                      for each in FAR_APART)))  # fmt: skip
    assert dumped.source.gaps == []
    assert "pcie-trees" in codes(dumped)


@pytest.mark.parametrize("count", ["abc", "-3", "9" * 20, "", "1.5"])
def test_a_number_of_links_that_is_none_is_said(count):
    """They were left out silently, and then GPUs were said to have none."""
    link = f'<nvlink target="0000:05:00.0" count="{count}" tclass="0x068000"/>'
    body = "".join(pci(f"0{i}", gpu(i, link), device="0x2330") for i in range(3))
    machine = read_text(system(body))
    assert f"GPU0: nvlink count='{count}' is no number of links and 2 more" in said(machine)
    assert "pcie-trees" not in codes(machine)


def test_links_left_out_of_one_gpu_are_no_uneven_links():
    link = '<nvlink target="0000:05:00.0" count="{}" tclass="0x068000"/>'
    counts = ("18", "18", "many")
    body = "".join(
        pci(f"0{i}", gpu(i, link.format(n)), device="0x2330") for i, n in enumerate(counts)
    )
    found = codes(read_text(system(body)))
    assert "not all told" in found["gap"]
    assert not {"nvlink-uneven", "nvlink-partial", "nvlink-missing"} & set(found)


def test_a_nic_beyond_the_cpu_without_numa_nodes():
    """It was nowhere to be seen, though it stands in the tree."""
    nic = pci("02", net("mlx5_0", guid="0x1234567", port=1, gdr=1), "0x020700", "0x15b3")
    first = pci("10", pci("01", gpu(0), device="0x2330") + nic, "0x060400")
    second = pci("20", pci("21", gpu(1), device="0x2330"), "0x060400")
    found = codes(read_text(system(first + second, numa=(-1,))))["nic-far"]
    assert found == "GPU1: the nearest backend NIC is beyond the CPU; the source tells no NUMA node"


def test_gpus_on_no_pci_device():
    with pytest.raises(BadTopology, match="gpu elements outside a pci element"):
        read_text(f'<system version="1">{gpu(0)}</system>')
    machine = read_text(system(pci("01", gpu(0), device="0x2330") + gpu(1)))
    assert machine.source.gaps == ["1 gpu element outside a pci element: left out"]


def test_one_of_a_kind_has_no_plural():
    body = pci("01", device="0x2330") + pci("02", "", "0x020700", "0x15b3")
    assert "1 GPU and 1 NIC are told by their PCI class alone" in said(read_text(system(body)))


@pytest.mark.parametrize(
    ("vendor", "device", "name"),
    [("0x10de", "0x2330", "NVIDIA H100 80GB HBM3"), ("0x10DE", "0x20B5", "NVIDIA A100 80GB PCIe"),
     ("0x1002", "0x74a1", "AMD Instinct MI300X"), ("0x10de", "0xffff", ""), ("", "0x2330", "")],
)  # fmt: skip
def test_names_by_number(vendor, device, name):
    assert gpu_name(vendor, device) == name


@pytest.mark.parametrize("device", ["20b0", "20b2", "20b5", "2330", "2335", "2901", "2941", "1db5"])
def test_named_models_are_ones_whose_links_are_known(device):
    name = gpu_name("0x10de", f"0x{device}")
    assert model_known(name)
    assert pcie_of_model(name) or name == "NVIDIA GB200"


def test_codes_written_by_hand():
    machine = read_text(system(pci("01", code="030200", vendor="10DE", device="20B2")))
    assert [gpu.model for gpu in machine.gpus] == ["NVIDIA A100-SXM4-80GB"]


def test_a_link_that_is_none():
    """A virtual machine's device has 255 lanes: the file was refused for it."""
    machine = read_text(system(pci("01", gpu(0), link='link_width="255"')))
    assert machine.pci[0].link.width == 0
    with pytest.raises(BadTopology, match="lanes: 64 is out of reach"):
        read_text(system(pci("01", gpu(0), link='link_width="64"')))


@pytest.mark.parametrize(
    "head", ['<?xml version="1.0" encoding="UTF-16"?>\n', "<!-- <topology> -->\n"]
)
def test_what_stands_before_the_system(head, tmp_path):
    path = tmp_path / "t.xml"
    path.write_bytes((head + system(pci("01", gpu(0)))).encode("utf-16"))
    assert [one.name for one in load(path).gpus] == ["GPU0"]


@pytest.mark.parametrize(
    "head", ["<!-- -->" * 50_000, "<!--" * 50_000, "<?" * 50_000, " \n" * 50_000]
)
def test_a_long_head_takes_no_long_time(head):
    start = time.monotonic()
    with pytest.raises(BadTopology):
        read_text(head + "<nothing/>")
    assert time.monotonic() - start < 10
