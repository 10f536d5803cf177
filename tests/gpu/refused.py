"""One of four ranks on one GPU, two nodes of two, of which NCCL refuses one call between nodes.

    scripts/gpu_test refused [PLACE ..]

Rank 2's send amid an all_gather is refused once (refused.c); NCCL would take all later ones, and
the others have sent theirs. What they sent must not come out of rank 2's next call, nor its next
one out of theirs. Each rank waits for each call as TORCH_NCCL_BLOCKING_WAIT=1 has it: until its
stream is through or the communicator has an error. A call that came through has every byte right,
also the one that was broken off, and from a rank's first error on every call is one. The exit code
is 1 where not.

REFUSED_RECORD is a file for what was found, NODES_COMMIT what it says of the code.
"""

import json
import os
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

RANK = int(os.environ["RANK"])
os.environ["NCCL_HOSTID"] = f"host{RANK}"
os.environ["BRAID_HOST_ID"] = f"node{RANK // 2}"
os.environ["TORCH_NCCL_BLOCKING_WAIT"] = "1"

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

COUNT, CALLS = 400_000, 12  # four blocks of 1.6 MB: one exchange on the rail


def make(call: int) -> str:
    """right, wrong, or an error's first line."""
    size = dist.get_world_size()
    recv = torch.full((size * COUNT,), -1.0, device="cuda")
    send = torch.full((COUNT,), float(100 * call + RANK), device="cuda")
    torch.cuda.synchronize()
    try:
        work = dist.all_gather_into_tensor(recv, send, async_op=True)
        assert work is not None
        work.wait()
    except RuntimeError as error:
        return f"error: {str(error).splitlines()[0][:120]}"
    wanted = torch.tensor([float(100 * call + rank) for rank in range(size)]).repeat_interleave(
        COUNT
    )
    found = recv.cpu()
    if torch.equal(found, wanted):
        return "right"
    strange = found[(found != wanted) & (found != -1)].unique().tolist()
    missing = int((found == -1).sum())
    return f"WRONG: {missing} elements are missing, strange ones: {strange[:8]}"


def judge(calls: list[str]) -> list[str]:
    """What is not as it must be."""
    errors = [call.startswith("error") for call in calls]
    first = errors.index(True) if True in errors else len(calls)
    found = [f"call {n}: {calls[n]}" for n in range(first) if calls[n] != "right"]
    found += [f"call {n} came through after an error" for n in range(first, CALLS) if not errors[n]]
    if first == len(calls):
        found.append("no call was an error")
    return found


def record(calls: list[str], troubles: list[str], store: Any) -> None:
    """Of all ranks, through torch's store: no collective works any more."""
    store.set(f"found {RANK}", json.dumps({"calls": calls, "troubles": troubles}))
    size = dist.get_world_size()
    if RANK == 0 and (path := os.environ.get("REFUSED_RECORD")):
        found = {
            "schema": "braid.nodes_refused/1",
            "command": "scripts/gpu_test refused",
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "commit": os.environ.get("NODES_COMMIT", "unknown"),
            "dirty": "NODES_COMMIT" not in os.environ,
            "gpu": torch.cuda.get_device_name(0),
            "nccl": ".".join(str(one) for one in torch.cuda.nccl.version()),
            "refused_send": int(os.environ["REFUSED_AT"]),
            "refused_rank": int(os.environ["REFUSED_RANK"]),
            "ranks": [json.loads(store.get(f"found {rank}")) for rank in range(size)],
        }
        Path(path).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    # Rank 0 has the store: it goes last.
    if RANK != 0:
        store.set(f"gone {RANK}", "")
    else:
        store.wait([f"gone {rank}" for rank in range(1, size)], timedelta(seconds=30))


def main() -> int:
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", timeout=timedelta(seconds=20))
    store = dist.PrefixStore("refused", dist.distributed_c10d._get_default_store())
    calls = [make(call) for call in range(CALLS)]
    troubles = judge(calls)
    for call, what in enumerate(calls):
        print(f"rank {RANK}: call {call}: {what}", flush=True)
    for trouble in troubles:
        print(f"rank {RANK}: NOT AS IT MUST BE: {trouble}", flush=True)
    record(calls, troubles, store)
    return 1 if troubles else 0


if __name__ == "__main__":
    sys.exit(main())
