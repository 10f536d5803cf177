"""What is wrong, or worth knowing, about a machine: every question asked, warnings first."""

from braid.topo.facts import Machine
from braid.topo.look import View
from braid.topo.verdicts import gpu_links, memory, network, pcie, pcie_only
from braid.topo.verdicts.verdict import Verdict, names

__all__ = ["Verdict", "names", "verdicts"]


def verdicts(machine: Machine) -> list[Verdict]:
    """All verdicts. Gaps of the source are notes at the end."""
    view = View(machine)
    questions = (
        *gpu_links.QUESTIONS,
        *pcie.QUESTIONS,
        *pcie_only.QUESTIONS,
        *network.QUESTIONS,
        *memory.QUESTIONS,
    )
    found = [verdict for question in questions for verdict in question(view)]
    if not machine.gpus:
        is_whole = machine.source.format in ("live", "sysfs", "hwloc")
        text = "there is no GPU" if is_whole else "the source tells of no GPU"
        found.append(Verdict("no-gpu", "note", text))
    found += [Verdict("gap", "note", gap) for gap in machine.source.gaps]
    return sorted(found, key=lambda verdict: verdict.level == "note")
