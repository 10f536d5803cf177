"""NCCL's, hwloc's and rocm-smi's files with what is rare in them: missing, extra, doubled."""

import re

import pytest

from braid.topo.errors import BadTopology
from braid.topo.facts import CPU, SWITCH
from braid.topo.look import View
from braid.topo.read import read_text


def nccl(inner, cpu='numaid="0" affinity="ff" arch="x86_64" vendor="GenuineIntel" modelid="143"'):
    return f'<system version="1"><cpu {cpu}>{inner}</cpu></system>'


def pci(bus, inner="", code="0x030200", speed="32.0 GT/s PCIe", width=16):
    return (
        f'<pci busid="0000:{bus}:00.0" class="{code}" vendor="0x10de" link_speed="{speed}"'
        f' link_width="{width}">{inner}</pci>'
    )


def gpu(dev, inner="", sm="90"):
    return f'<gpu dev="{dev}" sm="{sm}" rank="{dev}">{inner}</gpu>'


def nvlink(target, count=4, tclass="0x030200"):
    return f'<nvlink target="0000:{target}:00.0" count="{count}" tclass="{tclass}"/>'


def test_gpus_are_ordered_by_their_numbers():
    machine = read_text(nccl("".join(pci(f"0{9 - i}", gpu(i)) for i in (2, 0, 1))))
    assert [(g.name, g.pci) for g in machine.gpus] == [
        ("GPU0", "0000:09:00.0"), ("GPU1", "0000:08:00.0"), ("GPU2", "0000:07:00.0"),
    ]  # fmt: skip
    assert all(g.arch == "sm_90" and g.cpus == "0-7" and g.numa == 0 for g in machine.gpus)
    assert machine.cpu.socket_gbps == 22.0


def test_links_to_switches_to_peers_to_the_cpu_and_to_nobody():
    links = nvlink("ff", 18, "0x068000") + '<c2c bw="44800" count="10"/>'
    one = read_text(nccl(pci("01", gpu(0, links)))).gpu_links
    assert [(x.b, x.count, x.gbps_each) for x in one] == [(SWITCH, 18, None), (CPU, 10, 44.8)]
    both = nccl(pci("01", gpu(0, nvlink("02"))) + pci("02", gpu(1, nvlink("01"))))
    assert [(x.a, x.b, x.count) for x in read_text(both).gpu_links] == [("GPU0", "GPU1", 4)]
    assert read_text(nccl(pci("01", gpu(0, nvlink("77"))))).gpu_links == []
    assert read_text(nccl(pci("01", gpu(0, nvlink("01"))))).gpu_links == []
    assert read_text(nccl(pci("01", gpu(0, nvlink("ff", 0, "0x068000"))))).gpu_links == []


def test_bundles_that_are_told_in_parts_are_added():
    links = nvlink("fe", 10, "0x068000") + nvlink("ff", 8, "0x068000")
    machine = read_text(nccl(pci("01", gpu(0, links)) + pci("02", gpu(1, links))))
    assert View(machine).links_between("GPU0", "GPU1") == 18


def test_ranks_that_share_a_gpu_are_one():
    machine = read_text(nccl(pci("01", gpu(0) + gpu(0)) + pci("02", gpu(1))))
    assert [g.name for g in machine.gpus] == ["GPU0", "GPU1"]


@pytest.mark.parametrize(
    ("code", "guid", "kind"),
    [("0x020700", "0x1", "infiniband"), ("0x020000", "0x1", "roce"),
     ("0x020000", "0x0", "ethernet"), ("0x020000", "wrong", "ethernet")],
)  # fmt: skip
def test_kinds_of_nics(code, guid, kind):
    net = f'<nic><net name="mlx5_0" speed="400000" guid="{guid}"/><net name="mlx5_0"/></nic>'
    machine = read_text(nccl(pci("01", gpu(0)) + pci("02", net, code)))
    assert [(n.name, n.kind, n.gbit) for n in machine.nics] == [("mlx5_0", kind, 400.0)]


def test_an_interface_without_a_device_is_read_once():
    lo = '<nic><net name="eth0" speed="10000"/><other/><net/></nic>'
    machine = read_text(nccl(pci("01", gpu(0)) + lo + lo))
    assert [(n.name, n.kind, n.pci, n.numa) for n in machine.nics] == [
        ("eth0", "ethernet", None, None)
    ]


def test_two_gpus_below_one_switch():
    inner = pci("02", gpu(0)) + pci("03", gpu(1))
    both = read_text(nccl(pci("01", inner, "0x060400")))
    assert View(both).path("GPU0", "GPU1") == "PIX"
    apart = read_text(nccl(pci("01", pci("02", gpu(0)), "0x060400") + pci("03", gpu(1))))
    assert View(apart).path("GPU0", "GPU1") == "PHB"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<system/>", "0 GPUs: the NCCL topology has none"),
        ('<system version="3"/>', "NCCL topology of version 3; braid reads 1 and 2"),
        ("<graph/>", "the XML's root is <graph>, NCCL's is <system>"),
        (nccl('<pci busid="1"/>'), "a pci element has the busid '1'"),
        (nccl(pci("01", gpu("x"))), "the GPU at 0000:01:00.0 has the number 'x'"),
        (nccl(pci("01", gpu(-1))), "has the number '-1'"),
        (nccl(pci("01", gpu(0)), 'numaid="0" affinity="zz"'), "'zz' is no mask of processors"),
        (nccl(pci("01", gpu(0)) + pci("01", gpu(1))), "0000:01:00.0 is there twice"),
        (nccl(pci("01", gpu(0), width=64)), "lanes: 64 is out of reach"),
        ("<system>" * 70 + "</system>" * 70, "nested more than 64 deep"),
        ('<!DOCTYPE x [<!ENTITY a "b">]><system>&a;</system>', "defines entities"),
    ],
)
def test_nccl_files_that_are_refused(text, said):
    with pytest.raises(BadTopology, match=re.escape(said)):
        read_text(text)


def rocm(types, hops, more=""):
    """The two tables of `rocm-smi --showtopo` for as many GPUs as there are rows."""

    def table(title, rows):
        head = "       " + "  ".join(f"GPU{i}" for i in range(len(rows)))
        lines = [f"GPU{i}   " + "  ".join(row) for i, row in enumerate(rows)]
        return "\n".join([f"====== {title} ======", head, *lines])

    return "\n".join([table("Hops between two GPUs", hops),
                      table("Link Type between two GPUs", types), more])  # fmt: skip


@pytest.mark.parametrize(
    ("hops", "kind"), [("1", "PHB"), ("2", "PHB"), ("3", "SYS"), ("N/A", None)]
)
def test_hops_of_amd_gpus(hops, kind):
    text = rocm([["0", "PCIE"], ["PCIE", "0"]], [["0", hops], [hops, "0"]])
    assert View(read_text(text)).path("GPU0", "GPU1") == kind


def test_names_and_nodes_of_amd_gpus():
    more = (
        "====== Numa Nodes ======\nGPU[0]\t: (Topology) Numa Node: 1\n"
        "GPU[1]\t: (Topology) Numa Node: -1\n"
        "GPU[0]\t: Card Series: \tAMD Instinct MI300X\nGPU[1]\t: GFX Version: gfx942\n"
        "GPU[7]\t: Card Series: nobody\n"
    )
    machine = read_text(rocm([["0", "XGMI"], ["XGMI", "0"]], [["0", "1"], ["1", "0"]], more))
    assert [(g.model, g.arch, g.numa) for g in machine.gpus] == [
        ("AMD Instinct MI300X", "", 1),
        ("", "gfx942", None),
    ]
    assert [(x.a, x.b, x.kind) for x in machine.gpu_links] == [("GPU0", "GPU1", "xgmi")]
    assert [n.index for n in machine.numa] == [1]


def test_amd_tables_that_contradict_themselves():
    with pytest.raises(BadTopology, match="GPU0 to GPU1 is XGMI, GPU1 to GPU0 is PCIE"):
        read_text(rocm([["0", "XGMI"], ["PCIE", "0"]], [["0", "1"], ["1", "0"]]))
    with pytest.raises(BadTopology, match="the row of GPU1 is cut off or missing"):
        read_text(rocm([["0", "XGMI"], ["XGMI"]], [["0", "1"], ["1", "0"]]))
