"""Where a job runs, and what it computes: the two halves of every question in this folder."""

from dataclasses import dataclass

from braid.plan.basis import Basis, Quantity
from braid.plan.formulas import training
from braid.plan.hardware import Hardware, Path
from braid.plan.network import Network
from braid.plan.predict import Prediction, Request, predict
from braid.plan.wrong import PlanError, a_count, a_part, above_zero, at_least


@dataclass(frozen=True)
class Machines:
    """Where a job runs."""

    hardware: Hardware
    path: Path
    gpus: int
    """Per node."""
    nodes: int = 1
    network: Network | None = None
    algorithm: str = "auto"
    """Of every collective."""

    def check(self) -> None:
        """PlanError for what no machine can do."""
        a_count("--gpus", self.gpus)
        a_count("--nodes", self.nodes)
        most = self.hardware.gpus_per_node
        if self.gpus > most:
            raise PlanError(
                f"--gpus {self.gpus}: {self.hardware.name} has {most} per node; --nodes has more"
            )

    @property
    def ranks(self) -> int:
        """All GPUs."""
        return self.gpus * self.nodes

    def border(self) -> Quantity:
        """The specified rate that a flat ring over all ranks has: what leaves a node, or a GPU."""
        if self.nodes > 1 and self.network:
            return self.network.per_node(self.gpus)
        return self.path.specified(self.gpus)

    def time(self, op: str, nbytes: float) -> Prediction:
        """One call over all ranks."""
        request = Request(op, nbytes, self.gpus, self.nodes)
        return predict(request, self.path, self.network, self.algorithm)

    def words(self) -> str:
        """For titles."""
        nodes = f"{self.nodes} x " if self.nodes > 1 else ""
        return f"{nodes}{self.gpus} x {self.hardware.title}"


@dataclass(frozen=True)
class Work:
    """The computation of one step, from the model's size or as measured."""

    parameters: float
    sequence: int = 0
    batch: int = 0
    """Sequences of one step, all GPUs together."""
    recompute: bool = False
    mfu: float = 0.5
    compute_s: float = 0.0
    """As given; 0: from the rest."""
    basis: Basis = Basis.EXACT
    """Of the number of parameters."""
    active: float = 0.0
    """Parameters that one token uses, of a mixture of experts; 0: all."""

    @property
    def count(self) -> Quantity:
        """The parameters, and what their number rests on."""
        return Quantity(self.parameters, "", self.basis, "parameters")

    def tflop_per_gpu(self, ranks: int) -> float:
        """F9."""
        used = self.active or self.parameters
        passes = (
            training.FORWARD_BACKWARD_RECOMPUTE if self.recompute else training.FORWARD_BACKWARD
        )
        return training.tflop_per_gpu(used, self.sequence, self.batch, ranks, passes)

    def check(self) -> None:
        """PlanError for what no model can be."""
        above_zero("parameters", self.parameters)
        a_part("--mfu", self.mfu)
        for option, value in (
            ("--compute-ms", self.compute_s * 1e3),
            ("--seq", self.sequence),
            ("--batch", self.batch),
        ):
            at_least(option, value, 0)

    def seconds(self, hardware: Hardware, ranks: int) -> Quantity | None:
        """F10; None when nothing was said about the work."""
        if self.compute_s:
            return Quantity(self.compute_s, "s", Basis.MEASURED, "as given")
        if not self.sequence or not self.batch:
            return None
        peak = hardware.peak()
        value = training.compute_s(self.tflop_per_gpu(ranks), peak.value, self.mfu)
        return Quantity(
            value, "s", Basis.ASSUMED, f"{self.mfu:.0%} of {peak.value:g} TFLOP/s: {peak.origin}"
        )
