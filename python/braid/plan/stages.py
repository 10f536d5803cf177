"""all_gather, reduce_scatter and all_reduce over several nodes: one ring around all ranks, or two
stages, inside the nodes and between them. What each puts on which link, and how long that takes.

A model: bytes are exact, times are rates by bytes with NCCL's own latencies, and off by up to 30 %.
It says which side limits; a record says how long a call takes.
"""

from dataclasses import dataclass

from braid.plan import protocols
from braid.plan.amounts import amount
from braid.plan.basis import Basis, Quantity
from braid.plan.formulas import nodes as formulas
from braid.plan.formulas import rates
from braid.plan.report import Report, Row
from braid.plan.wrong import PlanError, a_count, above_zero, at_least

NIC_PART = 0.97
"""Of a NIC's rate that data can have."""
INSIDE_GBPS = 385.0
"""What a GPU sends over NVLink with copy engines: 8 x H200, records/."""
RING_GBPS = 370.0
"""What NCCL's rings reach there."""
CALL_US = 11.0
"""A call inside a node besides its bytes, by copy engines; so, too, each of two stages."""
PIECE_US = 3.0
"""What a piece more costs."""
MOST_PIECES = 16
LEGEND = (
    "bytes: of one call; cable: what leaves a node through its NICs; inside: what a rank sends to"
    " others of its node; straight: every rank to every other one",
    "ring: time of one ring around all ranks, as NCCL's; serial: of two stages, one after the"
    " other; staged: of both at once, in pieces; gain: ring / staged, above 1 two stages are"
    " faster",
    "NIC limits, inside limits: which of the two stages the other one waits for",
)
"""What rows and columns of the answer are, printed below them."""


@dataclass(frozen=True)
class Nics:
    """Of a node: so many of one rate."""

    count: int
    gbps: float

    @property
    def node_gbps(self) -> float:
        return self.count * self.gbps


def parse_nics(text: str) -> Nics:
    """ "8@400Gbit/s", "1@800Mbit/s", "4@50GB/s": how many, and the rate of one."""
    count, at, rate = text.partition("@")
    units = {"gbit/s": 1 / 8, "gbit": 1 / 8, "g": 1 / 8, "mbit/s": 1 / 8000, "gb/s": 1.0}
    number = rate.lower().rstrip("abdeghijklmnopqrstuvwxyz/ ")
    unit = rate.lower()[len(number) :].strip()
    try:
        gbps = float(number) * units[unit]
        found = Nics(int(count), gbps)
    except (ValueError, KeyError):
        found = Nics(0, 0.0)
    if not at or found.count < 1 or found.gbps <= 0:
        raise PlanError(f"--nics: '{text}' is no set of NICs; write 8@400Gbit/s or 1@800Mbit/s")
    a_count("--nics: how many", found.count)
    above_zero("--nics: GB/s of one", found.gbps)
    return found


@dataclass(frozen=True)
class Stages:
    """One question."""

    op: str
    nodes: int
    per_node: int
    nics: Nics
    inside_gbps: float = INSIDE_GBPS

    def check(self) -> None:
        """PlanError for what has no stages."""
        if self.op not in formulas.STAGED_OPS:
            raise PlanError(
                f"op '{self.op}' has no stages; {', '.join(formulas.STAGED_OPS)} have them"
            )
        at_least("--nodes", self.nodes, 2)
        a_count("--nodes", self.nodes)
        a_count("--ranks", self.per_node)
        above_zero("--inside", self.inside_gbps)

    @property
    def cable_gbps(self) -> float:
        return self.nics.node_gbps * NIC_PART

    def ring_us(self, nbytes: float) -> float:
        """NCCL's ring around all ranks."""
        args = (self.op, self.nodes, self.per_node, nbytes)
        cable, inside = formulas.ring_cable_bytes(*args), formulas.ring_inside_bytes(*args)
        ring_gbps = min(RING_GBPS, self.inside_gbps)
        wire = formulas.slower_us(cable, self.cable_gbps, inside, ring_gbps)
        steps = formulas.phases(self.op) * (self.nodes * self.per_node - 1 - self.nodes)
        return protocols.call_us(wire, max(steps, 0), formulas.phases(self.op) * self.nodes)

    def rail_us(self, nbytes: float) -> float:
        """Between the nodes alone."""
        wire = formulas.staged_cable_bytes(self.op, self.nodes, self.per_node, nbytes)
        us = rates.seconds(wire, self.cable_gbps) * 1e6
        return protocols.call_us(us, 0, formulas.phases(self.op) * (self.nodes - 1))

    def inside_us(self, nbytes: float) -> float:
        """Inside a node alone."""
        inside = formulas.staged_inside_bytes(self.op, self.nodes, self.per_node, nbytes)
        return formulas.phases(self.op) * CALL_US + rates.seconds(inside, self.inside_gbps) * 1e6

    def serial_us(self, nbytes: float) -> float:
        """One stage after the other."""
        return self.rail_us(nbytes) + self.inside_us(nbytes)

    def staged_us(self, nbytes: float) -> float:
        """Both at once, in as many pieces as are best."""
        inside = self.inside_us(nbytes)
        arrivals = inside * (self.nodes - 1) / self.nodes
        return min(
            formulas.in_pieces_us(self.rail_us(nbytes), inside, arrivals, pieces, PIECE_US)
            for pieces in range(1, MOST_PIECES + 1)
        )

    def limit(self, nbytes: float) -> str:
        """What two stages wait for."""
        return "NIC" if self.rail_us(nbytes) >= self.inside_us(nbytes) else "inside"


def report(asked: Stages, sizes: list[int]) -> Report:
    """Bytes of the last size by link, and times of all."""
    asked.check()
    largest = sizes[-1]
    answer = Report(
        "nodes",
        f"{asked.op} over {asked.nodes} nodes of {asked.per_node}, {asked.nics.count} NICs of "
        f"{asked.nics.gbps:g} GB/s each",
        {
            "op": asked.op,
            "nodes": asked.nodes,
            "ranks": asked.per_node,
            "nics": asked.nics.count,
            "nic_gbps": asked.nics.gbps,
            "inside_gbps": asked.inside_gbps,
        },
    )
    _add_bytes(answer, asked, largest)
    for size in sizes:
        answer.rows.append(_row(asked, size))
    answer.notes += LEGEND
    answer.notes.append(
        "times are a model, +-30 %: rates by bytes, NCCL's latencies; no record of several nodes"
        " is behind them"
    )
    return answer


def _size(nbytes: int) -> str:
    return amount(Quantity(nbytes, "B", Basis.EXACT, ""), binary=True)


def _add_bytes(answer: Report, asked: Stages, nbytes: int) -> None:
    args = (asked.op, asked.nodes, asked.per_node, nbytes)
    of = f"of {_size(nbytes)}"
    for name, label, value in (
        ("staged_cable", "a node's cable, two stages", formulas.staged_cable_bytes(*args)),
        ("ring_cable", "a node's cable, one ring", formulas.ring_cable_bytes(*args)),
        ("flat_cable", "a node's cable, straight", formulas.flat_cable_bytes(*args)),
        ("staged_inside", "a rank inside, two stages", formulas.staged_inside_bytes(*args)),
        ("ring_inside", "a rank inside, one ring", formulas.ring_inside_bytes(*args)),
        ("flat_inside", "a rank inside, straight", formulas.flat_inside_bytes(*args)),
    ):
        answer.exact(name, f"{label}, {of}", value, "B")


def _row(asked: Stages, nbytes: int) -> Row:
    ring, staged = asked.ring_us(nbytes), asked.staged_us(nbytes)

    def assumed(value: float, unit: str) -> Quantity:
        return Quantity(value, unit, Basis.ASSUMED, "model")

    cells = {
        "ring": assumed(ring, "us"),
        "serial": assumed(asked.serial_us(nbytes), "us"),
        "staged": assumed(staged, "us"),
        "gain": assumed(ring / staged, ""),
    }
    return Row(_size(nbytes), cells, f"{asked.limit(nbytes)} limits")
