"""Who is measured: braid as it plans, braid held to given shares, and Gloo.

A contestant runs one case on buffers that all share. Between enter() and leave() only its own
calls are made.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

import braid
from braid.cases.host import Buffers
from braid.launch import free_port


class Contestant(ABC):
    """Something that can run a case."""

    name: str

    @abstractmethod
    def prepare(self, buffers: Buffers) -> None:
        """Takes the buffers of the next case."""

    @abstractmethod
    def run(self) -> None:
        """One call. Collective."""

    def enter(self) -> None:  # noqa: B027 - most need no preparation
        """Called before a series of calls."""

    def leave(self) -> None:  # noqa: B027
        """Called after it."""


class Braid(Contestant):
    """Braid, with the shares that it plans, or with forced ones."""

    def __init__(
        self, comm: braid.Comm, name: str = "braid", shares: Sequence[float] | None = None
    ) -> None:
        self.name = name
        self.shares = shares
        self._comm = comm
        self._buffers: Buffers | None = None

    def prepare(self, buffers: Buffers) -> None:
        """Takes the buffers of the next case."""
        self._buffers = buffers

    def enter(self) -> None:
        """Forces the shares, if any."""
        self._comm._force_shares(self.shares)

    def leave(self) -> None:
        """Lets braid plan again."""
        self._comm._force_shares(None)

    def run(self) -> None:
        """One call."""
        assert self._buffers is not None
        case, send, out = self._buffers.case, self._buffers.send, self._buffers.out
        if case.op == "broadcast":
            self._comm.broadcast(out, case.root)
        elif case.op == "all_gather":
            self._comm.all_gather(send, out)
        elif case.op == "all_to_all":
            self._comm.all_to_all(send, out)
        elif case.op == "all_reduce":
            self._comm.all_reduce(send, cast("braid.Op", case.redop), out)
        else:
            self._comm.reduce_scatter(send, cast("braid.Op", case.redop), out)


class Gloo(Contestant):
    """torch.distributed with its Gloo backend, in the same processes. Needs torch.

    Gloo's all_reduce is in place only: the receive buffer is its operand, filled before a checked
    call and left as it is between timed ones.
    """

    name = "gloo"

    def __init__(self, comm: braid.Comm) -> None:
        import torch.distributed

        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        port = np.array([free_port() if comm.rank == 0 else 0], dtype=np.int32)
        comm.broadcast(port)
        address = os.environ.get("MASTER_ADDR", "127.0.0.1")
        self._dist: Any = torch.distributed
        self._torch: Any = torch
        self._dist.init_process_group(
            "gloo", init_method=f"tcp://{address}:{port[0]}", rank=comm.rank, world_size=comm.size
        )
        self._buffers: Buffers | None = None
        self._send: Any = None
        self._out: Any = None

    def prepare(self, buffers: Buffers) -> None:
        """Takes the buffers of the next case."""
        self._buffers = buffers
        self._send, self._out = (
            self._torch.from_numpy(buffers.send),
            self._torch.from_numpy(buffers.out),
        )

    def load_operand(self) -> None:
        """For all_reduce, puts this rank's data where Gloo wants it."""
        assert self._buffers is not None
        if self._buffers.case.op == "all_reduce":
            self._buffers.out[:] = self._buffers.send

    def run(self) -> None:
        """One call."""
        assert self._buffers is not None
        case, dist = self._buffers.case, self._dist
        if case.op == "broadcast":
            dist.broadcast(self._out, case.root)
        elif case.op == "all_gather":
            dist.all_gather_into_tensor(self._out, self._send)
        elif case.op == "all_to_all":
            dist.all_to_all_single(self._out, self._send)
        elif case.op == "all_reduce":
            dist.all_reduce(self._out, self._op(case.redop))
        else:
            dist.reduce_scatter_tensor(self._out, self._send, self._op(case.redop))

    def _op(self, redop: str) -> object:
        names = {"sum": "SUM", "prod": "PRODUCT", "min": "MIN", "max": "MAX", "avg": "AVG"}
        return getattr(self._dist.ReduceOp, names[redop])

    def close(self) -> None:
        """Ends Gloo's threads."""
        self._dist.destroy_process_group()
