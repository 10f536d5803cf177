"""Machines of many kinds as nvidia-smi tells them: counts, rates, places, networks, verdicts."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from braid.topo.document import document
from braid.topo.groups import Bundle, Links
from braid.topo.read import read_text
from braid.topo.show import html, svg, tree

CUBE = {"01": 1, "02": 1, "13": 1, "45": 1, "46": 1, "57": 1, "26": 1, "37": 1,
        "03": 2, "04": 2, "12": 2, "15": 2, "23": 2, "47": 2, "56": 2, "67": 2}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """What stands in the text, and what must be read out of it."""

    name: str
    model: str
    gpus: int
    pair: str | Callable[[int, int], str]
    """The word of two GPUs, or of all."""
    gbps: float | None = None
    """All links of a GPU."""
    joined: tuple[int, ...] = ()
    """Sizes of groups that links join."""
    nics: int = 0
    nic: str | Callable[[int, int], str] = "SYS"
    """The word of a GPU and a NIC."""
    numa: int | Callable[[int], int] = lambda gpu: gpu // 4
    roles: dict[str, int] = field(default_factory=dict)
    nodes: dict[int | None, int] = field(default_factory=dict)
    """NICs by the node where they are."""
    says: frozenset[str] = frozenset()
    named: str = "mlx5_{}"


def own(order, shared=1):
    """A NIC for `shared` GPUs below their switch; others of the same half are in its node."""

    def word(gpu, nic):
        if nic in order:
            at = order.index(nic)
            if at == gpu // shared:
                return "PXB"
            return "NODE" if at * shared // 4 == gpu // 4 else "SYS"
        return "NODE" if (nic <= max(order) / 2) == (gpu < 4) else "SYS"

    return word


def halves(word, other):
    """One word within four GPUs, another across."""
    return lambda a, b: word if a // 4 == b // 4 else other


ALL = tuple(range(2, 9))
CASES = [
    Case("a100", "NVIDIA A100-SXM4-80GB", 8, "NV12", 300, ALL, 10,
         own([0, 1, 2, 3, 5, 6, 7, 8]), roles={"backend": 8, "storage": 2},
         nodes={0: 5, 1: 5}, says=frozenset({"frontend-rdma"})),
    Case("a100-shared", "NVIDIA A100-SXM4-40GB", 8, "NV12", 300, ALL, 4,
         own([0, 1, 2, 3], 2), roles={"backend": 4}, nodes={0: 2, 1: 2}),
    Case("b200", "NVIDIA B200", 8, "NV18", 900, ALL, 12,
         own([0, 3, 4, 5, 6, 9, 10, 11]), roles={"backend": 8, "storage": 4},
         nodes={0: 6, 1: 6}, says=frozenset({"frontend-rdma"})),
    Case("unnamed", "", 8, "NV18", 450, ALL, says=frozenset({"model-unknown"})),
    Case("h20", "NVIDIA H20", 8, "NV18", 450, ALL, 4, own([0, 1, 2, 3], 2),
         roles={"backend": 4}, nodes={0: 2, 1: 2}, named="mlx5_bond_{}"),
    Case("a800", "NVIDIA A800-SXM4-80GB", 8, "NV8", 200, ALL, 4,
         own([0, 1, 2, 3], 2), roles={"backend": 4}, nodes={0: 2, 1: 2}, named="erdma_{}"),
    Case("cube", "Tesla V100-SXM2-16GB", 8,
         lambda a, b: f"NV{CUBE[f'{a}{b}']}" if f"{a}{b}" in CUBE else "SYS", 150, ALL,
         says=frozenset({"nvlink-partial"})),
    Case("gh200", "NVIDIA GH200 480GB", 4, "NV6", 450, (2, 3, 4),
         numa=lambda gpu: gpu, says=frozenset({"small-groups"})),
    Case("bridges", "NVIDIA H100 NVL", 4, lambda a, b: "NV12" if b - a == 2 else "SYS", 300, (2,),
         numa=lambda gpu: gpu % 2, says=frozenset({"nvlink-partial", "pcie-trees"})),
    Case("3090", "NVIDIA GeForce RTX 3090", 8,
         lambda a, b: "NV4" if a // 2 == b // 2 else halves("PHB", "SYS")(a, b), 56.25, (2,),
         says=frozenset({"nvlink-partial", "no-p2p", "pcie-trees"})),
    Case("4090", "NVIDIA GeForce RTX 4090", 2, "PHB",
         says=frozenset({"no-p2p", "pcie-trees"})),
    Case("l40s", "NVIDIA L40S", 10, lambda a, b: "PXB" if a // 5 == b // 5 else "SYS", nics=2,
         nic=lambda gpu, nic: "PXB" if gpu // 5 == nic else "SYS", numa=lambda gpu: gpu // 5,
         roles={"backend": 2}, nodes={0: 1, 1: 1},
         says=frozenset({"shared-uplink", "pcie-trees"})),
    Case("l4", "NVIDIA L4", 4, "PHB", numa=0,
         says=frozenset({"pcie-trees"})),
    Case("one", "NVIDIA GeForce RTX 4070 Laptop GPU", 1, "", numa=0),
    Case("dgx2", "Tesla V100-SXM3-32GB", 16, "NV6", 150, tuple(range(2, 17)),
         numa=lambda gpu: gpu // 8),
    Case("far-nic", "NVIDIA H100 80GB HBM3", 8, "NV18", 450, ALL, 2,
         lambda gpu, _: "NODE" if gpu < 4 else "SYS", roles={"backend": 2}, nodes={0: 2},
         says=frozenset({"nic-far"})),
    Case("no-node", "NVIDIA H100 80GB HBM3", 8, "NV18", 450, ALL, 1,
         "SYS", roles={"backend": 1}, nodes={None: 1},
         says=frozenset({"nic-far"})),
]  # fmt: skip


def of(rule, *numbers):
    """What a rule says of these, or of all."""
    return rule(*numbers) if callable(rule) else rule


def text(case):
    """As nvidia-smi -L and topo -m write it. NICs meet each other nowhere near."""
    gpus, nics = range(case.gpus), range(case.nics)
    names = [*(f"GPU{i}" for i in gpus), *(f"NIC{i}" for i in nics)]
    lines = [f"GPU {i}: {case.model} (UUID: GPU-{i:08x})" for i in gpus if case.model]
    lines.append("\t" + "\t".join(names) + "\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID")
    for i in gpus:
        row = ["X" if i == j else of(case.pair, min(i, j), max(i, j)) for j in gpus]
        row += [of(case.nic, i, j) for j in nics]
        lines.append("\t".join([f"GPU{i}", *row, "0-63", str(of(case.numa, i)), "", "N/A"]))
    for i in nics:
        row = [of(case.nic, j, i) for j in gpus] + ["X" if i == j else "SYS" for j in nics]
        lines.append("\t".join([f"NIC{i}", *row]))
    legend = [f"  NIC{i}: {case.named.format(i)}" for i in nics]
    return "\n".join([*lines, "", "Legend:", "", "NIC Legend:", "", *legend, ""])


@pytest.fixture(params=CASES, ids=lambda case: case.name)
def case(request):
    return request.param


def test_counts_and_names(case):
    machine = read_text(text(case))
    assert [gpu.name for gpu in machine.gpus] == [f"GPU{i}" for i in range(case.gpus)]
    assert {gpu.model for gpu in machine.gpus} == {case.model}
    assert [nic.name for nic in machine.nics] == [case.named.format(i) for i in range(case.nics)]


def test_rates_and_groups(case):
    machine = read_text(text(case))
    links = [rate for rate in document(machine).derived.links if rate.kind == "nvlink"]
    of_first = [rate.theoretical_gbps for rate in links if rate.a == "GPU0"]
    assert (sum(of_first) if of_first else None) == case.gbps
    groups = Links(Bundle(rate.a, rate.b, rate.theoretical_gbps) for rate in links)
    sizes = range(2, case.gpus + 1)
    assert tuple(size for size in sizes if groups.best_group(size)) == case.joined


def test_networks_and_places(case):
    derived = document(read_text(text(case))).derived
    assert Counter(derived.roles.values()) == case.roles
    nics = {place.device: place.numa for place in derived.places[case.gpus :]}
    assert Counter(nics.values()) == case.nodes


def test_what_is_said(case):
    found = document(read_text(text(case)))
    assert {verdict.code for verdict in found.derived.verdicts} == case.says
    drawn = "\n".join(tree.lines(found.machine))
    assert all(
        drawn.count(f"{place.device}  ") >= 1 for place in found.derived.places if case.model
    )
    assert svg.draw(found).count('class="gpu') == html.page(found).count('class="gpu') > 0
