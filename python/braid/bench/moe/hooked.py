"""Low-latency calls in two halves, of anybody with DeepEP's interface: a send half, and a hook that
receives. Both are enqueued on the current stream; between them the call has no kernel on the GPU.
"""

from typing import Any, Protocol

import torch

from braid.bench.moe.arrivals import Arrivals, wrong_bytes
from braid.bench.moe.contestants import Case
from braid.bench.moe.steps import Side


class Hooked(Protocol):
    """One kind of call. `before` and `after` are whole calls of the other kind, as in a layer, and
    are not timed.
    """

    name: str
    is_braids: bool

    def before(self) -> None: ...
    def send(self) -> None: ...
    def spoil(self) -> None:
        """Between the halves: a hook that does nothing then leaves nothing right."""

    def hook(self) -> None: ...
    def after(self) -> None: ...
    def wrong(self) -> int:
        """Wrong bytes of what the last call left."""


class HookedDispatch:
    """In fp8."""

    def __init__(self, side: Side, case: Case, arrivals: Arrivals) -> None:
        self.name, self.is_braids = (
            f"{side.prefix}low latency dispatch fp8, hooked",
            not side.prefix,
        )
        self._side, self._case, self._arrivals = side, case, arrivals
        local = case.shape.num_experts // case.size
        self._y = case.x.new_zeros((local, side.rows * case.size, case.shape.hidden))
        self._got: Any = None

    def before(self) -> None:
        pass

    def send(self) -> None:
        c = self._case
        self._got = self._side.low.low_latency_dispatch(
            c.x, c.ids, self._side.rows, c.shape.num_experts, use_fp8=True, return_recv_hook=True
        )

    def spoil(self) -> None:
        rows, scales = self._got[0]
        rows.view(torch.uint8).fill_(0xFF)  # NaN
        scales.fill_(torch.nan)

    def hook(self) -> None:
        self._got[4]()

    def after(self) -> None:
        c = self._case
        self._side.low.low_latency_combine(self._y, c.ids, c.weights, self._got[2])

    def wrong(self) -> int:
        return self._arrivals.wrong_low_latency(self._got)


class HookedCombine:
    """In bf16, of rows that a dispatch has brought as they are: weights of a token add up to 1, so
    its sum is the token, to the bit.
    """

    def __init__(self, side: Side, case: Case) -> None:
        self.name, self.is_braids = (
            f"{side.prefix}low latency combine bf16, hooked",
            not side.prefix,
        )
        self._side, self._case = side, case
        self._rows: Any = None
        self._handle: Any = None
        self._sums: Any = None
        self._hook: Any = None

    def before(self) -> None:
        c = self._case
        self._rows, _, self._handle, _, _ = self._side.low.low_latency_dispatch(
            c.x, c.ids, self._side.rows, c.shape.num_experts, use_fp8=False
        )

    def send(self) -> None:
        c = self._case
        self._sums, _, self._hook = self._side.low.low_latency_combine(
            self._rows, c.ids, c.weights, self._handle, return_recv_hook=True
        )

    def spoil(self) -> None:
        self._sums.fill_(torch.nan)

    def hook(self) -> None:
        self._hook()

    def after(self) -> None:
        pass

    def wrong(self) -> int:
        return wrong_bytes(self._sums, self._case.x)


class Gemm:
    """rows x depth by depth x columns, in bf16, always the same."""

    def __init__(self, rows: int, depth: int, columns: int, device: str) -> None:
        like = {"dtype": torch.bfloat16, "device": device}
        self._x = torch.randn((rows, depth), **like)
        self._w = torch.randn((columns, depth), **like)
        self._y = torch.empty((rows, columns), **like)

    def run(self) -> None:
        torch.matmul(self._x, self._w.t(), out=self._y)
