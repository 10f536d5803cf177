"""braid as a contestant: as it plans, on unregistered results, and held to one link."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch

import braid
from braid.bench.contestant import Contestant, Shelf
from braid.bench.pattern import Data
from braid.cases.gpu import GpuCase

_SHARE_ERROR = 0.005
LINKS_FROM_BYTES = 16 << 20  # smaller messages use NVLink alone: there is nothing to hold


@dataclass(frozen=True)
class GpuPlan:
    """How a comm would move a case."""

    path: str
    host_share: float
    rdma_share: float = 0.0


def plan_of(comm: braid.Comm, case: GpuCase) -> GpuPlan:
    """The plan that explain() gives for this case."""
    plan = comm.explain(cast("braid.Operation", case.op), case.total_bytes, on="gpu").json
    shares = {link["name"]: float(link["share"]) for link in plan["links"]}
    return GpuPlan(str(plan["path"]), shares["pcie"], shares.get("rdma", 0.0))


def plain_shelf(device: torch.device) -> Shelf:
    """Memory of torch's allocator."""

    def make(nbytes: int) -> tuple[torch.Tensor, Callable[[], None]]:
        return torch.empty(nbytes, dtype=torch.uint8, device=device), lambda: None

    return Shelf(make)


def registered_shelf(comm: braid.Comm, device: torch.device) -> Shelf:
    """The same, shared with all ranks of a comm."""

    def make(nbytes: int) -> tuple[torch.Tensor, Callable[[], None]]:
        buffer = torch.empty(nbytes, dtype=torch.uint8, device=device)
        comm.register(buffer)
        return buffer, lambda: comm.unregister(buffer)

    return Shelf(make)


class Braid(Contestant):
    """braid on one comm; `host_share` holds its GPU messages to that part over the host link."""

    def __init__(
        self,
        name: str,
        group: str,
        comm: braid.Comm,
        send: Shelf,
        out: Shelf,
        host_share: float | None = None,
    ) -> None:
        self.name, self.group = name, group
        self._comm, self._send_shelf, self._out_shelf = comm, send, out
        self._host_share = host_share
        self._call: Any = None

    def why_not(self, case: GpuCase) -> str:
        """Links can be told apart from some size on."""
        if self._host_share is not None and case.own_bytes < LINKS_FROM_BYTES:
            return "links are measured alone from 16 MiB on"
        return ""

    def shelves(self, case: GpuCase) -> dict[Shelf, int]:
        """The memory it uses."""
        sent, got = case.send_count * case.itemsize, case.out_count * case.itemsize
        return {self._send_shelf: sent, self._out_shelf: got}

    def prepare(self, case: GpuCase, data: Data, rank: int) -> None:
        """Takes buffers, fills what is sent, makes the call. RuntimeError when the case cannot be
        held to the link.
        """
        self._op = case.op
        self._check_share(case)
        self.send = self._send_shelf.take(case.send_count * case.itemsize, data.dtype)
        self.out = self._out_shelf.take(case.out_count * case.itemsize, data.dtype)
        data.fill(self.send, rank)
        comm, send, out = self._comm, self.send, self.out
        calls = {
            "all_gather": lambda: comm.all_gather(send, out),
            "all_reduce": lambda: comm.all_reduce(send, out=out),
            "reduce_scatter": lambda: comm.reduce_scatter(send, out=out),
            "all_to_all": lambda: comm.all_to_all(send, out),
            "broadcast": lambda: comm.broadcast(out, case.root),
        }
        self._call = calls[case.op]

    def _check_share(self, case: GpuCase) -> None:
        if self._host_share is None:
            return
        self.enter()
        share = plan_of(self._comm, case).host_share
        if abs(share - self._host_share) > _SHARE_ERROR:
            raise RuntimeError(
                f"asked for {self._host_share:.0%} over the host link, the plan has {share:.1%}"
            )

    def enter(self) -> None:
        """Holds the comm to this contestant's share."""
        if self._host_share is not None:
            self._comm._force_host_share(torch.cuda.current_device(), self._op, self._host_share)

    def run(self) -> None:
        """Enqueues one call."""
        self._call()

    def let_go(self) -> None:
        """Forgets its buffers."""
        super().let_go()
        self._call = None
