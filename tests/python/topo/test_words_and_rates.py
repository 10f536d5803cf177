"""`nvidia-smi topo -m` as drivers printed it over the years, and rates that follow from facts."""

import random
import re

import pytest

from braid.topo import tables
from braid.topo.diff import diff
from braid.topo.errors import BadTopology
from braid.topo.facts import (
    CPU,
    SWITCH,
    Cpu,
    Gpu,
    GpuLink,
    Machine,
    Nic,
    Numa,
    Path,
    PciDevice,
    PcieLink,
    Source,
)  # fmt: skip
from braid.topo.look import View
from braid.topo.matrix import matrix
from braid.topo.measured import Measured
from braid.topo.rates import link_gbps, link_words, rates
from braid.topo.read import read_text
from braid.topo.roles import roles


def table(columns, rows, titles=("CPU Affinity",), gap="\t"):
    """The text of a table."""
    head = gap.join(["", *columns, *titles])
    return "\n".join([head, *(gap.join([name, *cells]) for name, cells in rows.items())])


def pairs(machine):
    return {(path.a, path.b): path.kind for path in machine.paths}


@pytest.mark.parametrize("gap", ["\t", "  ", " \t "])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\n\n"])
def test_white_space_of_every_kind(gap, end):
    text = table(["GPU0", "GPU1"], {"GPU0": ["X", "NODE", "0-7"], "GPU1": ["NODE", "X", "0-7"]},
                 gap=gap)  # fmt: skip
    machine = read_text(text.replace("\n", end))
    assert pairs(machine) == {("GPU0", "GPU1"): "NODE"}
    assert [gpu.cpus for gpu in machine.gpus] == ["0-7", "0-7"]


@pytest.mark.parametrize(("old", "new"), [("SOC", "SYS"), ("MDF", "PHB")])
def test_words_that_drivers_gave_up(old, new):
    made = [
        read_text(table(["GPU0", "mlx5_0"], {"GPU0": ["X", word, "0"], "mlx5_0": [word, "X"]}))
        for word in (old, new)
    ]
    assert pairs(made[0]) == pairs(made[1]) == {("GPU0", "mlx5_0"): new}
    assert [nic.name for nic in made[0].nics] == ["mlx5_0"]


def test_names_of_nics_from_the_legend():
    text = table(["GPU0", "NIC0", "NIC1"], {
        "GPU0": ["X", "PIX", "SYS", "0-3"], "NIC0": ["PIX", "X", "SYS"],
        "NIC1": ["SYS", "SYS", "X"],
    }) + "\n\nLegend:\n\n  X = Self\n\nNIC Legend:\n\n  NIC0: mlx5_0\n  NIC1: rocep5\n"  # fmt: skip
    machine = read_text(text)
    assert [nic.name for nic in machine.nics] == ["mlx5_0", "rocep5"]
    assert pairs(machine)["GPU0", "rocep5"] == "SYS"


def test_underlined_heads_and_three_affinities():
    text = "\t\x1b[4mGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    text += "GPU0\tX\tNV18\t0-71\t0\t4\nGPU1\tNV18\tX\t72-143\t1\t12\n"
    machine = read_text(text)
    assert [(gpu.cpus, gpu.numa, gpu.memory_numa) for gpu in machine.gpus] == [
        ("0-71", 0, 4),
        ("72-143", 1, 12),
    ]
    assert [(node.index, node.cpus) for node in machine.numa] == [(0, "0-71"), (1, "72-143")]


def test_affinities_that_are_not_there():
    text = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\n"
    text += "GPU0\tX\tSYS\tN/A\tN/A\nGPU1\tSYS\tX\t0-3\t0-1\n"
    first, second = read_text(text).gpus
    assert (first.cpus, first.numa) == ("", None)
    assert (second.cpus, second.numa) == ("0-3", 0)


@pytest.mark.parametrize("gpus", [1, 2, 3, 8, 16])
@pytest.mark.parametrize("links", [2, 4, 18])
def test_switched_or_joined_in_pairs(gpus, links):
    """A GPU has no more than 18 links: as soon as words add up to more, they end in switches."""
    names = [f"GPU{i}" for i in range(gpus)]
    rows = {a: [("X" if a == b else f"NV{links}") for b in names] + ["0"] for a in names}
    machine = read_text(table(names, rows))
    ends = {link.b for link in machine.gpu_links}
    if gpus == 1:
        assert not ends
    elif gpus > 2 and (gpus - 1) * links > 18:
        assert ends == {SWITCH}
        assert [link.count for link in machine.gpu_links] == [links] * gpus
    else:
        assert SWITCH not in ends
        assert len(machine.gpu_links) == gpus * (gpus - 1) // 2
    view = View(machine)
    assert all(view.links_between(a, b) == links for a in names for b in names if a != b)


def test_a_matrix_that_is_printed_and_read_again():
    rng = random.Random(11)
    for _ in range(20):
        names = [f"GPU{i}" for i in range(rng.randrange(2, 6))] + ["mlx5_0", "mlx5_1"]
        words = {frozenset((a, b)): rng.choice(["PIX", "PXB", "PHB", "NODE", "SYS"])
                 for i, a in enumerate(names) for b in names[i + 1 :]}  # fmt: skip
        rows = {a: [("X" if a == b else words[frozenset((a, b))]) for b in names] for a in names}
        machine = read_text(table(names, rows))
        found = matrix(machine)
        assert found.devices == names
        assert found.words == list(rows.values())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("\tGPU0\tGPU1\nGPU0\tX\tPIX\nGPU1\tSYS\tX", "GPU0 to GPU1 is PIX, GPU1 to GPU0 is SYS"),
        ("\tGPU0\tGPU1\nGPU0\tX\tPIX", "the row of GPU1 is missing; is the text cut off"),
        ("\tGPU0\tGPU1\nGPU0\tX\nGPU1\tPIX\tX", "row GPU0 has 1 cells of 2"),
        ("\tGPU0\tGPU1\nGPU0\tX\tBUS\nGPU1\tBUS\tX", "row GPU0, column GPU1: 'BUS' is no word"),
        ("\tGPU0\tGPU0\nGPU0\tX\tX", "a column is there twice"),
        ("\tGPU0\nGPU0\tX\nGPU0\tX", "row GPU0 is there twice"),
        ("No devices were found", "0 GPUs: nvidia-smi found no devices"),
    ],
)
def test_tables_that_are_damaged(text, said):
    with pytest.raises(BadTopology, match=re.escape(said)):
        read_text(text)


GENERATIONS = [(1, 2.5, 0.8), (2, 5.0, 0.8), (3, 8.0, 128 / 130), (4, 16.0, 128 / 130),
               (5, 32.0, 128 / 130), (6, 64.0, 242 / 256), (7, 128.0, 242 / 256)]  # fmt: skip


@pytest.mark.parametrize(("generation", "gts", "coding"), GENERATIONS)
def test_every_generation_of_pcie(generation, gts, coding):
    assert tables.pcie_generation(gts) == generation
    assert tables.pcie_speed(generation) == gts
    for width in (1, 2, 4, 8, 12, 16, 32):
        link = PcieLink(gts, width)
        assert link_gbps(link) == pytest.approx(gts * coding * width / 8)
        assert link_words(link) == f"PCIe {generation} x{width}"


def test_links_that_are_told_in_part():
    assert link_gbps(PcieLink()) is None
    assert link_gbps(PcieLink(16.0, 0)) is None
    assert link_gbps(PcieLink(gbps=31.5)) == 31.5
    assert link_gbps(PcieLink(7.0, 16)) is None
    words = [link_words(x) for x in (PcieLink(), PcieLink(gbps=31.5), PcieLink(7.0, 16))]
    assert words == ["", "PCIe", "PCIe ? x16"]
    assert (tables.pcie_generation(7.0), tables.pcie_speed(9)) == (None, 0.0)


@pytest.mark.parametrize(
    ("model", "gbps"),
    [
        ("Tesla P100-SXM2-16GB", 80), ("Tesla V100-SXM2-32GB", 150), ("NVIDIA A100-SXM4-80GB", 300),
        ("NVIDIA A800-SXM4-80GB", 200), ("NVIDIA A40", 56.25), ("NVIDIA H100 80GB HBM3", 450),
        ("NVIDIA H800", 200), ("NVIDIA H20", 450), ("NVIDIA GH200 480GB", 450),
        ("NVIDIA B200", 900), ("NVIDIA GB300", 900), ("AMD Instinct MI250X", 350),
        ("AMD Instinct MI325X", 448), ("AMD Instinct MI355X", 535.5), ("h100", 450),
    ],
)  # fmt: skip
def test_one_direction_of_a_gpu_s_links(model, gbps):
    spec = tables.model_known(model)
    assert spec.gbps_each * spec.links == gbps
    machine = Machine(
        Source("live"),
        gpus=[Gpu("GPU0", model), Gpu("GPU1", model)],
        gpu_links=[GpuLink(f"GPU{i}", SWITCH, "nvlink", spec.links) for i in range(2)],
    )
    for rate in rates(machine):
        assert (rate.theoretical_gbps, rate.duplex_gbps) == (gbps, 2 * gbps)
        assert (rate.gbit, rate.basis) == (8 * gbps, "specified")


@pytest.mark.parametrize("model", ["NVIDIA L40S", "NVIDIA T4", "Tesla K80", "", "B2000", "XH100"])
def test_models_without_a_row(model):
    assert tables.model_known(model) is None


def whole():
    """One GPU of each sort of row."""
    return Machine(
        Source("live"),
        cpu=Cpu("Grace", 2, "aarch64", 6.0),
        numa=[Numa(0), Numa(1)],
        pci=[
            PciDevice("0000:01:00.0", "gpu", link=PcieLink(2.5, 16, 32.0, 16)),
            PciDevice("0000:02:00.0", "nic", link=PcieLink(16.0, 8, 32.0, 16)),
        ],
        gpus=[Gpu("GPU0", "NVIDIA GH200 480GB", pci="0000:01:00.0")],
        gpu_links=[GpuLink("GPU0", CPU, "c2c", 10, 44.8)],
        nics=[Nic("mlx5_0", "infiniband", "0000:02:00.0", gbit=400.0, lanes="4X NDR")],
    )


def test_every_sort_of_row():
    found = {(rate.a, rate.kind): rate for rate in rates(whole())}
    assert found["GPU0", "c2c"].theoretical_gbps == 448
    assert found["GPU0", "pcie"].name == "PCIe 5 x16"  # asleep: it speeds up under load
    assert found["GPU0", "pcie"].theoretical_gbps == 63.015
    assert found["mlx5_0", "pcie"].name == "PCIe 4 x8"  # a NIC does not
    assert found["mlx5_0", "pcie"].theoretical_gbps == 15.754
    assert found["mlx5_0", "nic"].theoretical_gbps == 50
    assert found["mlx5_0", "nic"].name == "InfiniBand 4X NDR"
    assert found["CPU", "socket"].theoretical_gbps == 6
    assert len(found) == 5


def test_measurements_find_their_links():
    measured = [Measured("pcie", 55.0, "host"), Measured("nic", 48.0, "bench", "mlx5_0"),
                Measured("nic", 1.0, "bench", "mlx5_9"), Measured("nvlink", 9.0, "x")]  # fmt: skip
    found = {(r.a, r.kind): (r.measured_gbps, r.measured_how) for r in rates(whole(), measured)}
    assert found["GPU0", "pcie"] == (55.0, "host")
    assert found["mlx5_0", "nic"] == (48.0, "bench")
    assert found["GPU0", "c2c"] == (None, "")
    assert found["CPU", "socket"] == (None, "")


@pytest.mark.parametrize(
    ("nic", "near", "role"),
    [
        (Nic("eth9", "ethernet", gbit=1.0), False, "out-of-band"),
        (Nic("mlx5_2", "roce", gbit=1.0), True, "out-of-band"),
        (Nic("eth9", "ethernet", gbit=100.0), True, "frontend"),
        (Nic("mlx5_2", "infiniband", gbit=400.0), True, "backend"),
        (Nic("mlx5_2", "infiniband", gbit=400.0), False, "storage"),
        (Nic("mlx5_2", "roce", gbit=200.0, has_default_route=True), False, "frontend"),
        (Nic("mlx5_bond_0", "unknown"), False, "frontend"),
        (Nic("rdmap16s27", "unknown"), True, "backend"),
        (Nic("eth1", "unknown"), True, "backend"),
        (Nic("ens3", "unknown"), False, "frontend"),
        (Nic("erdma_0", "unknown"), True, "backend"),
        (Nic("rdmap1", "efa", gbit=100.0), True, "backend"),
    ],
)
def test_networks_of_nics_beside_a_backend(nic, near, role):
    paths = [Path("GPU0", "mlx5_0", "PIX"), Path("GPU0", nic.name, "PXB" if near else "NODE")]
    backend = Nic("mlx5_0", "infiniband", gbit=400.0)
    machine = Machine(Source("live"), gpus=[Gpu("GPU0")], nics=[backend, nic], paths=paths)
    assert roles(View(machine)) == {"mlx5_0": "backend", nic.name: role}


def test_without_a_near_nic_speed_decides():
    nics = [Nic("a", "roce", gbit=400.0), Nic("b", "roce", gbit=100.0), Nic("c", "roce")]
    machine = Machine(Source("live"), gpus=[Gpu("GPU0")], nics=nics)
    assert roles(View(machine)) == {"a": "backend", "b": "storage", "c": "storage"}


def test_what_differs_is_the_same_from_both_sides():
    one, other = whole(), whole()
    other.nics[0] = Nic("mlx5_0", "infiniband", "0000:02:00.0", gbit=200.0, lanes="4X HDR")
    other.gpus.append(Gpu("GPU1"))
    assert diff(one, one) == []
    there = {each.what: (each.a, each.b) for each in diff(one, other)}
    back = {each.what: (each.b, each.a) for each in diff(other, one)}
    assert there == back
    assert there["GPUs"] == ("1", "2")
    assert there["GPU1"] == ("", "a GPU")
    assert "400" in there["mlx5_0"][0]
    assert "200" in there["mlx5_0"][1]
