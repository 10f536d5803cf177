"""The five collectives on GPU tensors against the same calls between CPUs, byte for byte.

python -m braid.bench.twin, as a rank. The data is random: float sums must have the same bits on
both, whatever links their bytes travelled over.
"""

import sys
from collections.abc import Callable

import torch

import braid
from braid.bench import own_gpu
from braid.cases.operations import OPS

_COUNTS = (1_001, 300_000, 4_000_000)  # elements of a block: packets, one kernel, copy engines
_DTYPES = (torch.bfloat16, torch.float32)


def calls(comm: braid.Comm, send: torch.Tensor) -> dict[str, Callable[[], torch.Tensor]]:
    """Every operation on `send`, which holds a block for every rank."""
    block = send[: send.numel() // comm.size]
    return {
        "all_gather": lambda: comm.all_gather(block),
        "all_reduce": lambda: comm.all_reduce(send, out=torch.empty_like(send)),
        "reduce_scatter": lambda: comm.reduce_scatter(send),
        "all_to_all": lambda: comm.all_to_all(send),
        "broadcast": lambda: comm.broadcast(send.clone(), comm.size - 1),
    }


def different_bytes(comm: braid.Comm, count: int, dtype: torch.dtype) -> dict[str, int]:
    """Bytes that GPU and CPU results differ in on this rank, by operation."""
    generator = torch.Generator().manual_seed(1000 * count + comm.rank)
    host = torch.randn(count * comm.size, generator=generator).to(dtype)
    on_gpu, on_host = calls(comm, host.cuda()), calls(comm, host)
    found = {}
    for op in OPS:
        got = on_gpu[op]().cpu().view(torch.uint8)
        found[op] = int((got != on_host[op]().view(torch.uint8)).sum())
    return found


def main() -> int:
    """1 when one byte differs anywhere."""
    own_gpu.take()
    total = dict.fromkeys(OPS, 0)
    with braid.init(links="shm", tune=False, progress=False) as comm:
        for dtype in _DTYPES:
            for count in _COUNTS:
                for op, wrong in different_bytes(comm, count, dtype).items():
                    total[op] += wrong
        everywhere = comm.all_reduce(torch.tensor([total[op] for op in OPS])).tolist()
        if comm.rank == 0:
            for op, wrong in zip(OPS, everywhere, strict=True):
                words = f"{wrong} BYTES DIFFER" if wrong else "the CPU's bytes"
                print(f"{op:15s} on {comm.size} GPUs: {words}", flush=True)  # noqa: T201
    return 1 if any(everywhere) else 0


if __name__ == "__main__":
    sys.exit(main())
