"""The links between nodes.

"200 Gbit/s" does not say how much of it one GPU has: per node or per GPU differ eightfold. So the
scope is part of the question.
"""

from dataclasses import dataclass

from braid.plan import shipped
from braid.plan.basis import Basis, Quantity
from braid.plan.formulas import rates
from braid.plan.wrong import PlanError, above_zero, unknown


@dataclass(frozen=True)
class Network:
    """What a node, or each of its GPUs, can send to other nodes."""

    gbps: float
    per: str
    """gpu or node."""
    basis: Basis
    origin: str
    adds: bool = True
    """Its switches can add (SHARP); of a rate that was given, the user knows."""

    def per_gpu(self, gpus: int) -> Quantity:
        """One GPU's rate, of `gpus` that communicate in a node."""
        gbps = self.gbps if self.per == "gpu" else self.gbps / gpus
        return Quantity(gbps, "GB/s", self.basis, f"NIC {self.origin}: {gbps:.4g} GB/s per GPU")

    def per_node(self, gpus: int) -> Quantity:
        """All NICs of a node, which a flat ring crosses together."""
        gbps = self.gbps * gpus if self.per == "gpu" else self.gbps
        return Quantity(gbps, "GB/s", self.basis, f"NIC {self.origin}: {gbps:.4g} GB/s per node")


def names() -> list[str]:
    """The networks we know by name."""
    return list(shipped.table("networks"))


def find(name: str) -> Network:
    """By name; these are per node. PlanError else."""
    table = shipped.table("networks")
    if name.lower() not in table:
        raise unknown("network", name, table)
    row = table[name.lower()]
    return Network(
        node_gbps(name.lower()),
        "node",
        Basis.SPECIFIED,
        f"{row['title']}, {row['nics']} x {row['gbit']}",
        row.get("sharp", False),
    )


def node_gbps(name: str) -> float:
    """All NICs of a node in this network, one direction."""
    row = shipped.table("networks")[name]
    return rates.node_gbps(row["nics"], row["gbit"])


def infiniband_gbit(generation: str, lanes: int) -> float:
    """An InfiniBand port, one direction. Ports usually have four lanes."""
    lane: float = shipped.table("infiniband")[generation]["lane_gbit"]
    return lane * lanes


def given(nic_gbit: float, per: str) -> Network:
    """From a rate and its scope. PlanError when the scope is missing."""
    above_zero("--nic-gbit", nic_gbit)
    if per not in ("gpu", "node"):
        raise PlanError(
            f"--nic-gbit {nic_gbit:g}: of a GPU or of a node? Say --nic-per gpu or --nic-per node"
        )
    origin = f"{nic_gbit:g} Gbit/s per {per}, as given"
    return Network(rates.gbps_of_gbit(nic_gbit), per, Basis.SPECIFIED, origin)


def choose(name: str, nic_gbit: float, per: str) -> Network | None:
    """What the options say; None when they say nothing."""
    if name and nic_gbit:
        raise PlanError("--network and --nic-gbit: give one of them")
    if name:
        return find(name)
    if nic_gbit or per:
        return given(nic_gbit, per)
    return None
