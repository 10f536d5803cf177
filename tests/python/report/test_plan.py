"""The plan on a report's page: for the machine at hand, by the ways that its group has."""

import pytest

from braid.plan.wrong import PlanError
from braid.report.plan import Asked, plans
from braid.topo.document import document
from braid.topo.facts import Gpu, GpuLink, Machine, Source

BRIDGED = [("GPU0", "GPU1"), ("GPU2", "GPU3")]


def cards():
    """Four H100 NVL in bridged pairs."""
    gpus = [Gpu(f"GPU{i}", "NVIDIA H100 NVL") for i in range(4)]
    links = [GpuLink(x, y, "nvlink", 12) for a, b in BRIDGED for x, y in ((a, b), (b, a))]
    return document(Machine(source=Source("nvidia-smi"), gpus=gpus, gpu_links=links))


def test_more_gpus_than_the_machine_has_are_refused_in_the_report_s_own_words():
    with pytest.raises(PlanError, match=r"^--tp 99: this machine has 4 GPUs$"):
        plans(Asked("llama3-8b", ranks=99), cards(), [])


@pytest.mark.parametrize(("ranks", "way"), [(2, "nvlink"), (4, "host-staged")])
def test_a_group_is_planned_over_links_that_join_it(ranks, way):
    (plan,) = plans(Asked("llama3-8b", ranks=ranks), cards(), [])
    assert any(line.label == f"{way}: one all-reduce" for line in plan.answer.lines)
    assert bool(plan.answer.warnings) is (ranks == 4)
