"""`rocm-smi --showtopo`."""

import pytest

from braid.topo.errors import BadTopology
from braid.topo.look import View
from braid.topo.matrix import matrix
from braid.topo.rates import rates
from braid.topo.read import load, read_text
from braid.topo.verdicts import verdicts


def test_mi300x(fixture_path):
    machine = load(fixture_path("mi300x_x8.txt"))
    assert {gpu.model for gpu in machine.gpus} == {"AMD Instinct MI300X OAM"}
    assert {gpu.arch for gpu in machine.gpus} == {"gfx942"}
    assert [gpu.numa for gpu in machine.gpus] == [0] * 4 + [1] * 4
    own = [rate for rate in rates(machine) if rate.a == "GPU5"]
    assert len(own) == 7
    assert {rate.theoretical_gbps for rate in own} == {64}
    assert sum(rate.theoretical_gbps for rate in own) == 448
    assert matrix(machine).words[0][:2] == ["X", "XG1"]
    assert matrix(machine, "nccl").words[0][:2] == ["LOC", "NVL"]


SMALL = """
======== Hops between two GPUs ========
       GPU0   GPU1   GPU2
GPU0   0      2      3
GPU1   2      0      3
GPU2   3      3      0

======== Link Type between two GPUs ========
       GPU0   GPU1   GPU2
GPU0   0      PCIE   PCIE
GPU1   PCIE   0      PCIE
GPU2   PCIE   PCIE   0
"""


def test_pcie():
    view = View(read_text(SMALL))
    assert view.path("GPU0", "GPU1") == "PHB"
    assert view.path("GPU0", "GPU2") == "SYS"


def test_without_a_table_of_hops_no_path_is_told():
    """NUMA nodes tell it where the text has them."""
    kinds = SMALL[SMALL.index("======== Link Type") :]
    view = View(read_text(kinds))
    assert view.path("GPU0", "GPU1") is None
    assert not [each for each in verdicts(view.machine) if "socket" in each.text]
    node = "GPU[{}]\t: (Topology) Numa Node: {}\n"
    told = View(read_text(kinds + "".join(node.format(i, i // 2) for i in range(3))))
    assert [told.path("GPU0", other) for other in ("GPU1", "GPU2")] == ["NODE", "SYS"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("==== ROCm System Management Interface ====\n", "0 GPUs"),
        (SMALL[:-20], "the row of GPU2 is cut off or missing"),
        (SMALL.replace("GPU1   PCIE", "GPU1   XGMI"), "GPU0 to GPU1 is PCIE, GPU1 to GPU0 is XGMI"),
    ],
)
def test_refused(text, said):
    with pytest.raises(BadTopology, match=said):
        read_text(text)


def tables(names, weights, kinds, titles, last=""):
    """Three tables as text; `weights` and `kinds` by pair of numbers, else 15 and XGMI."""

    def one(title, cell):
        rows = [
            f"{a}  " + "  ".join(cell(min(i, j), max(i, j)) if i != j else last for j in range(n))
            for i, a in enumerate(names)
        ]
        return [title, "   " + "  ".join(names), *rows, ""]

    n = len(names)
    return "\n".join(
        [
            *one(titles[0], lambda i, j: str(weights.get((i, j), 15))),
            *one(titles[1], lambda i, j: "1" if kinds.get((i, j), "XGMI") == "XGMI" else "3"),
            *one(titles[2], lambda i, j: kinds.get((i, j), "XGMI")),
        ]
    )


ROCM = [
    f"===== {what} between two GPUs =====" for what in ("Weight", "Hops", "Link Type")
]  # fmt: skip
AMD = ["WEIGHT TABLE:", "HOPS TABLE:", "LINK TYPE TABLE:"]


def test_xgmi_over_another_gpu_is_no_link():
    """MI250X: every pair is called XGMI, one hop; the weight counts the links on the way."""
    text = tables([f"GPU{i}" for i in range(4)], {(0, 3): 30, (1, 2): 30}, {}, ROCM, "0")
    text += "\n".join(f"GPU[{i}] : (Topology) Numa Node: {i // 2}" for i in range(4))
    machine = read_text(text)
    view = View(machine)
    assert {(x.a, x.b) for x in machine.gpu_links} == {
        ("GPU0", "GPU1"), ("GPU0", "GPU2"), ("GPU1", "GPU3"), ("GPU2", "GPU3")
    }  # fmt: skip
    assert view.links_between("GPU0", "GPU3") == 0
    assert (view.path("GPU0", "GPU3"), view.path("GPU1", "GPU2")) == ("SYS", "SYS")


def test_amd_smi_calls_gpus_by_address():
    names = ["0000:0c:00.0", "0000:22:00.0", "0000:9f:00.0"]
    machine = read_text(
        "ACCESS TABLE:\n" + tables(names, {(0, 2): 72}, {(0, 2): "PCIE"}, AMD, "SELF")
    )
    assert [(gpu.name, gpu.pci) for gpu in machine.gpus] == [
        (f"GPU{i}", name) for i, name in enumerate(names)
    ]
    view = View(machine)
    assert view.links_between("GPU0", "GPU1") == view.links_between("GPU1", "GPU2") == 1
    assert view.path("GPU0", "GPU2") == "SYS"
