"""One of four ranks on one GPU, two nodes of two, of which NCCL refuses one call between nodes.

    cc -shared -fPIC -o refused.so tests/gpu/refused.c REAL -ldl     (REAL: without a SONAME)
    BRAID_NCCL_REAL=refused.so REFUSED_REAL=REAL REFUSED_RANK=2 REFUSED_AT=5 .. as for nodes.py

Rank 2's send amid an all_gather is refused once; NCCL would take all later ones, and the others
have sent theirs. What they sent must not come out of rank 2's next call, nor its next one out of
theirs: later calls are errors on all ranks, and no result is of another call. Prints what was seen.
"""

import os
import sys
from datetime import timedelta

RANK = int(os.environ["RANK"])
os.environ["NCCL_HOSTID"] = f"host{RANK}"
os.environ["BRAID_HOST_ID"] = f"node{RANK // 2}"

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

COUNT, CALLS = 400_000, 12  # four blocks of 1.6 MB: one exchange on the rail


def main() -> int:
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", timeout=timedelta(seconds=20))
    size, errors = dist.get_world_size(), 0
    for call in range(CALLS):
        recv = torch.full((size * COUNT,), -1.0, device="cuda")
        send = torch.full((COUNT,), float(100 * call + RANK), device="cuda")
        try:
            dist.all_gather_into_tensor(recv, send)
            torch.cuda.synchronize()
        except RuntimeError as error:
            errors += 1
            print(f"rank {RANK}: call {call}: {str(error).splitlines()[0][:100]}", flush=True)
            continue  # as no program should: the next call must not go through
        wanted = [float(100 * call + rank) for rank in range(size)]
        found = recv.view(size, COUNT)[:, [0, COUNT // 2, -1]].cpu()
        is_right = all(bool((found[r] == wanted[r]).all()) for r in range(size))
        # A call that was broken off is told of by the communicator's error, and may be in part.
        in_part = all(bool(((found[r] == wanted[r]) | (found[r] == -1)).all()) for r in range(size))
        what = "right" if is_right else "in part" if in_part else "OF ANOTHER CALL"
        print(f"rank {RANK}: call {call}: {what}", flush=True)
    print(f"rank {RANK}: came through, {errors} errors", flush=True)
    return 3


if __name__ == "__main__":
    sys.exit(main())
