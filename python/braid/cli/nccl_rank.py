"""One rank of `braid nccl-check`: torch.distributed's "nccl" with the drop-in in front.

Every operation small and large, with exact results; rank 0 says where each of them went.
"""

import ctypes
import os
import sys
from collections.abc import Callable

from braid.cli.nccl import counts

OPS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all")
"""In the order of the drop-in's counters."""
_SIZES = {"4 KiB": 1 << 10, "64 MiB": 16 << 20}  # float32s


def _cases(count: int) -> dict[str, Callable[[], bool]]:
    import torch
    import torch.distributed as dist

    n, me = dist.get_world_size(), dist.get_rank()
    block = count // n
    positions = torch.arange(count, device="cuda") % 1000
    mine = (positions + me).float()
    total = (positions * n + n * (n - 1) // 2).float()
    part = slice(me * block, (me + 1) * block)

    def all_reduce() -> bool:
        out = mine.clone()
        dist.all_reduce(out)
        return bool(torch.equal(out, total))

    def all_gather() -> bool:
        out = torch.empty(block * n, device="cuda")
        dist.all_gather_into_tensor(out, mine[:block])
        return all(torch.equal(out[r * block :][:block], mine[:block] - me + r) for r in range(n))

    def reduce_scatter() -> bool:
        out = torch.empty(block, device="cuda")
        dist.reduce_scatter_tensor(out, mine[: block * n])
        return bool(torch.equal(out, total[part]))

    def broadcast() -> bool:
        out = mine.clone()
        dist.broadcast(out, n - 1)
        return bool(torch.equal(out, mine - me + n - 1))

    def all_to_all() -> bool:
        out = torch.empty(block * n, device="cuda")
        dist.all_to_all_single(out, mine[: block * n])
        return all(torch.equal(out[r * block :][:block], mine[part] - me + r) for r in range(n))

    return dict(
        zip(OPS, (all_reduce, all_gather, reduce_scatter, broadcast, all_to_all), strict=True)
    )


def main() -> int:
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    dist.init_process_group("nccl")
    loaded = ctypes.CDLL("libnccl.so.2")
    failed = False
    for size, count in _SIZES.items():
        for index, (name, case) in enumerate(_cases(count).items()):
            before = counts(loaded)
            wrong = torch.tensor([0 if case() else 1], device="cuda")
            taken, handed_on = (
                after[index] - b[index] for b, after in zip(before, counts(loaded), strict=True)
            )
            dist.all_reduce(wrong)
            failed = failed or int(wrong) > 0
            if dist.get_rank() == 0:
                where = "taken over" if taken and not handed_on else "done by NCCL"
                verdict = "exact" if int(wrong) == 0 else f"WRONG on {int(wrong)} ranks"
                print(f"{name:15s} {size:>7s}  {where}, {verdict}", flush=True)
    dist.destroy_process_group()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
