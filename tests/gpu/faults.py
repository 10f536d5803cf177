"""GPU ranks that die, come late or call something else: every other rank gets an error in time,
and its GPU stays usable.

    python tests/gpu/faults.py [RANKS]

Needs torch. Ranks share a GPU when there are fewer GPUs than ranks.
"""

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time

import torch

import braid
from braid.launch import free_port

TIMEOUT_S = 3.0
CASES = ("killed", "late", "other count", "other counts")
EXPECTED = {
    "killed": (braid.PeerLost, braid.Timeout),
    "late": (braid.PeerLost, braid.Timeout),
    "other count": (braid.InvalidArgument, braid.PeerLost, braid.Timeout),
    "other counts": (
        braid.InvalidArgument,
        braid.PeerLost,
    ),  # all ranks agree at their first meeting
}


def call(comm: braid.Comm, tensor: torch.Tensor, case: str, fewer: int = 0) -> None:
    """An all_to_all with counts per rank, of which rank 0 gets `fewer`; or two others."""
    if case == "other counts":
        counts = [tensor.numel() // comm.size] * comm.size
        sent = [max(0, counts[0] - fewer), *counts[1:]]
        comm.all_to_all(tensor[: sum(sent)], None, sent, counts)
    else:
        comm.all_reduce(tensor[: tensor.numel() - fewer])
        comm.all_gather(tensor)  # with BRAID_GPU_RDMA=on and a share: through proxies too
    torch.cuda.synchronize()


def misbehave(case: str, comm: braid.Comm, tensor: torch.Tensor) -> None:
    if case == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif case == "late":
        time.sleep(3 * TIMEOUT_S)
    else:
        call(comm, tensor, case, fewer=tensor.numel() // 4)


def rank_main(case: str, count: int) -> int:
    """0 when the error was the right one, in time, and the GPU works afterwards."""
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    tensor = torch.ones(count, device="cuda")
    comm = braid.init(timeout=TIMEOUT_S, tune=False, progress=False)
    for _ in range(5):
        call(comm, tensor, case)
    if comm.rank == comm.size - 1:
        with contextlib.suppress(braid.Error):
            misbehave(case, comm, tensor)
        return 0
    begin = time.monotonic()
    try:
        while True:  # the call that meets the trouble only enqueues; a later one says so
            call(comm, tensor, case)
            time.sleep(0.01)
    except EXPECTED[case] as error:
        took_s = time.monotonic() - begin
        print(
            f"  rank {comm.rank}: after {took_s:.1f} s: {type(error).__name__}: {error}", flush=True
        )
        if took_s > TIMEOUT_S + 2:
            return 2
    fresh = torch.arange(1000, device="cuda", dtype=torch.float64)
    return 0 if float(fresh.sum()) == 499500 else 3


def run(case: str, count: int, ranks: int) -> bool:
    environment = os.environ | {
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "BRAID_JOB_TOKEN": secrets.token_hex(16),
    }
    children = [
        subprocess.Popen(
            [sys.executable, __file__, "--rank", case, str(count)],
            env=environment | {"RANK": str(r), "LOCAL_RANK": str(r)},
        )
        for r in range(ranks)
    ]
    codes = []
    for child in children:
        try:
            codes.append(child.wait(timeout=60))
        except subprocess.TimeoutExpired:
            child.kill()
            codes.append(-99)
    good = all(code == 0 for code in codes[:-1])
    print(
        f"{case}, {count} elements: {'ok' if good else f'FAILED, exit codes {codes}'}", flush=True
    )
    return good


def main() -> int:
    if len(sys.argv) > 1 and sys.argv[1] == "--rank":
        code = rank_main(sys.argv[2], int(sys.argv[3]))
        os._exit(code)  # not the farewell of a comm that has failed
    ranks = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    counts = (1000, 20_000_000)  # packets, copy engines
    results = [run(case, count, ranks) for case in CASES for count in counts]
    print(f"gpu faults: {sum(results)} passed, {len(results) - sum(results)} failed")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
