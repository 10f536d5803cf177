"""`rocm-smi --showtopo`."""

import pytest

from braid.topo.errors import BadTopology
from braid.topo.look import View
from braid.topo.matrix import matrix
from braid.topo.rates import rates
from braid.topo.read import load, read_text


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
