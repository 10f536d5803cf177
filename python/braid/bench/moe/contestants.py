"""Who dispatches and combines: every one gets the same tokens and gives back the same sums."""

import tempfile
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

import braid
from braid.bench.moe.routings import Shape


class Contestant(Protocol):
    name: str

    def run(self) -> Any:
        """One dispatch and one combine; the sums, bf16 [T, H]."""


class Case:
    """One rank's tokens, as torch tensors."""

    def __init__(
        self, shape: Shape, ids: np.ndarray, size: int, rank: int, device: str = "cpu"
    ) -> None:
        import torch

        self.shape, self.size = shape, size
        values = np.arange(len(ids) * shape.hidden, dtype=np.int64).reshape(len(ids), shape.hidden)
        self.x = torch.from_numpy(((values * 7 + rank) % 255 - 127).astype(np.float32))
        self.x = self.x.to(device, torch.bfloat16)
        self.ids = torch.from_numpy(ids).to(device)
        self.weights = torch.full(ids.shape, 1 / shape.num_topk, device=device)


class Normal:
    """braid's normal mode. Ids and weights go along, which the baseline does not send."""

    name = "braid"

    def __init__(self, buffer: Any, case: Case) -> None:
        self.buffer, self.case = buffer, case

    def run(self) -> Any:
        b, c = self.buffer, self.case
        per_rank, _, per_expert, is_in, _ = b.get_dispatch_layout(c.ids, c.shape.num_experts)
        rows, _, _, _, handle, _ = b.dispatch(
            c.x, None, per_rank, None, is_in, per_expert, c.ids, c.weights
        )
        return b.combine(rows, handle)[0]


class Gathering(Normal):
    """The same by a buffer that may gather rows where it has found that to be faster."""

    name = "braid may gather"


class LowLatency:
    """braid's low-latency mode in bf16: sums by expert, not by rank."""

    name = "braid low latency"

    def __init__(self, buffer: Any, case: Case, rows: int = 0) -> None:
        self.buffer, self.case, self.rows = buffer, case, rows or len(case.x)

    def run(self) -> Any:
        b, c = self.buffer, self.case
        rows, _, handle, _, _ = b.low_latency_dispatch(
            c.x, c.ids, self.rows, c.shape.num_experts, use_fp8=False
        )
        return b.low_latency_combine(rows, c.ids, c.weights, handle)[0]


class LowLatencyByRank(LowLatency):
    """The same with sums by rank, of rows in bf16, added up once more here."""

    name = "braid low latency by rank"

    def run(self) -> Any:
        b, c = self.buffer, self.case
        rows, _, handle, _, _ = b.low_latency_dispatch(
            c.x, c.ids, len(c.x), c.shape.num_experts, use_fp8=False, topk_weights=c.weights
        )
        return b.low_latency_combine(rows, c.ids, c.weights, handle, partial="rank")[0]


class DeepEpNormal(Normal):
    """DeepEP's own normal mode, by the same calls."""

    name = "DeepEP"


class DeepEpLowLatency(LowLatency):
    """DeepEP's own low-latency mode, in bf16, by the same calls."""

    name = "DeepEP low latency"


class AllToAll:
    """torch's all_to_all_single over gloo or NCCL, one copy per token and rank, exact sizes; the
    sums are braid's: in rank order, in fp32, rounded once.
    """

    def __init__(self, case: Case, library: str = "gloo") -> None:
        self.case, self.name = case, f"{library} all_to_all_single"

    def run(self) -> Any:
        import torch
        import torch.distributed as dist

        c, n, place = self.case, self.case.size, {"device": self.case.x.device}
        ranks = c.ids // (c.shape.num_experts // n)
        here = [torch.nonzero((ranks == r).any(1)).flatten() for r in range(n)]
        sent = torch.tensor([len(each) for each in here], **place)
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent)
        ins, outs = sent.tolist(), received.tolist()
        width = 2 * c.shape.hidden
        rows = torch.empty((sum(outs), width), dtype=torch.uint8, **place)
        dist.all_to_all_single(rows, c.x[torch.cat(here)].view(torch.uint8), outs, ins)
        back = torch.empty((sum(ins), width), dtype=torch.uint8, **place)
        dist.all_to_all_single(back, rows, ins, outs)
        total = torch.zeros(c.x.shape, dtype=torch.float32, **place)
        for tokens, part in zip(here, back.view(torch.bfloat16).split(ins), strict=True):
            total.index_add_(0, tokens, part.float())
        return total.to(torch.bfloat16)


class Gathers:
    """No routing: braid's all-gather of all tokens and a reduce-scatter of as many rows. Sums are
    of the tokens themselves, times the ranks.
    """

    name = "braid all-gather and reduce-scatter"

    def __init__(self, comm: braid.Comm, case: Case) -> None:
        self.comm, self.case = comm, case

    def run(self) -> Any:
        return self.comm.reduce_scatter(self.comm.all_gather(self.case.x))


def join(comm: braid.Comm, library: str = "gloo") -> Callable[[], None]:
    """Makes torch's default group of this comm's ranks; answers how to leave it."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)  # ranks are as many as cores
    place = tempfile.mkdtemp() if comm.rank == 0 else ""
    place = comm.broadcast_object(place)
    dist.init_process_group(
        library, init_method=f"file://{place}/meet", rank=comm.rank, world_size=comm.size
    )
    comm.barrier()  # Gloo's ranks connect one by one: who left sooner would be a closed connection

    def leave() -> None:
        dist.destroy_process_group()

    return leave
