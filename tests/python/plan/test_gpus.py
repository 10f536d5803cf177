"""GPUs by drivers' names: peaks, memory, and the machines that cards make."""

import re

import pytest

from braid.plan import gpus, hardware, shipped, topology
from braid.plan.wrong import PlanError


@pytest.mark.parametrize(
    ("model", "name", "tflops", "memory"),
    [
        ("NVIDIA H100 80GB HBM3", "H100 SXM", 989, 80), ("NVIDIA H100 NVL", "H100 NVL", 835, 94),
        ("NVIDIA H100 PCIe", "H100 PCIe", 756, 80), ("NVIDIA H200", "H200 SXM", 989, 141),
        ("NVIDIA H20", "H20", 148, 96), ("NVIDIA GH200 480GB", "GH200", 989, 96),
        ("NVIDIA A100-SXM4-40GB", "A100", 312, 40), ("NVIDIA A100-PCIE-80GB", "A100", 312, 80),
        ("NVIDIA L4", "L4", 121, 24), ("NVIDIA L40", "L40", 181, 48),
        ("NVIDIA L40S", "L40S", 362, 48), ("NVIDIA A10G", "A10", 125, 24),
        ("Tesla V100-SXM2-16GB", "V100 SXM", 125, 16),
        ("Tesla V100-PCIE-32GB", "V100 PCIe", 112, 32), ("Tesla T4", "T4", 65, 16),
        ("NVIDIA GeForce RTX 4090", "RTX 4090", 165.2, 24), ("NVIDIA B200", "B200", 2250, 180),
        ("NVIDIA GB200", "GB200", 2500, 186), ("AMD Instinct MI300X", "MI300X", 1307, 192),
    ],
)  # fmt: skip
def test_a_driver_s_name(model, name, tflops, memory):
    found = gpus.find(model)
    assert (found.name, found.peak_tflops, found.memory_gb) == (name, tflops, memory)


@pytest.mark.parametrize("model", ["", "Tesla K80", "NVIDIA GeForce GTX 1080", "H1000", "L400"])
def test_a_gpu_that_the_table_does_not_have(model):
    assert gpus.find(model) is None


def test_every_row_fits_its_own_name():
    for name, row in shipped.table("gpus").items():
        assert re.search(row["match"], name.replace("V100 PCIe", "V100-PCIE"), re.IGNORECASE)


@pytest.mark.parametrize(
    ("said", "name"),
    [("4090", "rtx4090-pcie4"), ("rtx 4090", "rtx4090-pcie4"), ("RTX4090", "rtx4090-pcie4"),
     ("H20", "h20-nvlink4"), ("gh200", "gh200-nvlink4"), ("NVIDIA H200", "h200-nvlink4"),
     ("l40s", "l40s-pcie4"), ("h100", "h100-nvlink4")],
)  # fmt: skip
def test_machines_by_what_people_call_their_gpu(said, name):
    assert hardware.find(said).name == name


def test_an_unknown_machine_may_be_a_file():
    with pytest.raises(PlanError, match="or a file: what braid topo reads, a bench record"):
        hardware.find("dgx-spark")


def test_four_gh200_have_six_links_to_each_other():
    path = hardware.find("gh200").paths[0]
    assert (path.specified(4).value, path.specified(2).value) == (450, 150)


def test_a_card_s_record_has_no_switch():
    assert [path.name for path in hardware.of_gpu("NVIDIA H100 PCIe").paths] == ["host-staged"]
    assert hardware.of_gpu("NVIDIA H100 80GB HBM3").paths[0].name == "nvlink"
    assert hardware.of_gpu("NVIDIA H100 PCIe").peak_tflops == 756


@pytest.mark.parametrize(
    ("model", "gbps"),
    [("NVIDIA L40S", 31.5), ("NVIDIA GeForce RTX 5090", 63.0), ("Tesla T4", 15.75)],
)
def test_a_topology_of_cards_has_their_slots(model, gbps):
    document = {"gpus": [{"name": f"GPU{i}", "model": model} for i in range(4)], "links": []}
    node = topology.machine(document, "saved")
    assert node.path("auto", 4).rate_gbps == pytest.approx(gbps, rel=0.002)
    assert node.peak().value == gpus.find(model).peak_tflops
