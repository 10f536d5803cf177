"""`nvidia-smi topo -m`: every generation of the table, and text that was copied around."""

import pytest

from braid.topo.errors import BadTopology
from braid.topo.facts import SWITCH
from braid.topo.look import View
from braid.topo.matrix import matrix
from braid.topo.numbers import count_cpus
from braid.topo.rates import rates
from braid.topo.read import load, read_text


def gpu_rate(machine):
    """GB/s of all links of the first GPU."""
    return sum(r.theoretical_gbps for r in rates(machine) if r.a == "GPU0" and r.kind == "nvlink")


@pytest.mark.parametrize(
    ("name", "links", "gbps", "cores"),
    [("a100_x8.txt", 12, 300, 24), ("h100_x8.txt", 18, 450, 104)],
)
def test_published_machines(fixture_path, name, links, gbps, cores):
    machine = load(fixture_path(name))
    assert [gpu.numa for gpu in machine.gpus] == [0] * 4 + [1] * 4
    assert [count_cpus(node.cpus) for node in machine.numa] == [cores, cores]
    view = View(machine)
    assert all(view.links_between("GPU0", f"GPU{i}") == links for i in range(1, 8))
    assert {link.b for link in machine.gpu_links} == {SWITCH}
    assert gpu_rate(machine) == gbps


def test_published_pairs(fixture_path):
    bridged = load(fixture_path("two_nv2.txt"))
    assert bridged.gpus[0].cpus == "0-23"
    assert bridged.gpus[0].numa is None
    assert gpu_rate(bridged) == 50
    plain = load(fixture_path("a100_pcie_x2.txt"))
    assert View(plain).path("GPU0", "GPU1") == "PHB"
    assert not plain.gpu_links


def test_nic_names(fixture_path):
    """The legend's names; on old drivers the columns have them."""
    assert [nic.name for nic in load(fixture_path("h800_x8.txt")).nics][:2] == [
        "mlx5_bond_0",
        "mlx5_1",
    ]
    old = load(fixture_path("a100_x8.txt"))
    assert [nic.name for nic in old.nics] == [f"mlx5_{i}" for i in range(6)]
    assert View(old).path("GPU0", "mlx5_0") == "PXB"


def test_names_and_instances(fixture_path):
    machine = load(fixture_path("a100_mig_x2.txt"))
    assert machine.gpus[0].model == "NVIDIA A100-SXM4-80GB"
    assert machine.gpus[0].mig == ["3g.40gb", "3g.40gb"]
    assert machine.gpus[1].mig == []


def test_grace_blackwell(fixture_path):
    """ "0,2-17": the CPU's node, and those that GPU instances may be given."""
    machine = load(fixture_path("gb200_x4.txt"))
    assert [gpu.numa for gpu in machine.gpus] == [0, 0, 1, 1]
    assert [gpu.memory_numa for gpu in machine.gpus] == [2, 10, 18, 26]
    assert gpu_rate(machine) == 900


def test_old_words(fixture_path):
    machine = load(fixture_path("v100_x8_old.txt"))
    assert View(machine).path("GPU0", "GPU5") == "SYS"  # SOC
    assert View(machine).num_links("GPU0") == 6


def test_degraded_switch_links(fixture_path):
    """More links than a GPU has: words of pairs are not to be added up."""
    machine = load(fixture_path("broken_x4.txt"))
    view = View(machine)
    assert [view.num_links(gpu.name) for gpu in machine.gpus] == [12, 12, 10, 0]
    assert matrix(machine).words[0] == ["X", "NV12", "NV10", "-"]


HEAD = "\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"


def test_touching_cells():
    text = HEAD + "GPU0 X NV4NODE 0-3 0 N/A\nGPU1 NV4 X PIX 0-3 0 N/A\nNIC0 NODEPIX X\n"
    view = View(read_text(text))
    assert view.links_between("GPU0", "GPU1") == 4
    assert view.path("GPU1", "NIC0") == "PIX"


def test_missing_affinity():
    """A container without CPU sets: the value is not there at all."""
    machine = read_text("\tGPU0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \t\tN/A\n")
    assert machine.gpus[0].cpus == ""
    assert machine.gpus[0].numa is None


def test_rows_of_other_machines_are_left_out():
    text = (
        HEAD + "GPU0 X NV4 SYS 0-3 0 N/A\nGPU1 NV4 X SYS 0-3 0 N/A\nNIC0 SYS SYS X\nGPU4 NV4 NV4 -"
    )
    assert len(read_text(text).gpus) == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("No devices were found\n", "0 GPUs"),
        (HEAD + "GPU0 X NV4 SYS 0-3 0 N/A\n", "row of GPU1 is missing"),
        (HEAD + "GPU0 X NV4\n", "row GPU0 has 2 cells of 3"),
        (HEAD + "GPU0 X FOO SYS 0-3 0\nGPU1 X X SYS", "'FOO' is no word of topo -m"),
        (HEAD + "GPU0 X NV4 SYS 0 0\nGPU1 SYS X SYS 0 0\n", "GPU0 to GPU1 is NV4, GPU1 to GPU0"),
        (HEAD + "GPU0 X NV4 SYS 0 0\n" * 2, "row GPU0 is there twice"),
        ("\tGPU0\tGPU0\nGPU0 X NV1\n", "a column is there twice"),
        (HEAD + "GPU0 X NV4 SYS 9-3 0 -\nGPU1 NV4 X SYS 0 0 -\n", "'9-3' is no list of processors"),
    ],
)
def test_refused(text, said):
    with pytest.raises(BadTopology, match=said.replace("(", r"\(")):
        read_text(text)
