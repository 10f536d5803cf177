"""What a communicator takes of a GPU's memory: NCCL alone, and with the drop-in in its place.

    python tests/gpu/nccl_memory.py 8 [--before OTHER.so] [--json RECORD] [--commit NAME]

Ranks that find fewer GPUs share them, each a host of its own to NCCL. The driver tells how much of
the GPU is used, by all ranks together; what torch's allocator holds and what the processes have
before their first communicator is taken off, and the rest is divided by the ranks.

What is left of the drop-in's in a stage, NCCL's own taken off, is braid's. Without a race large
messages are braid's, and have their memory.

Some of a first communicator's is the process's: kernels' code, for one. The last stages make two
more by NCCL's own functions: NCCL connects nothing where braid has the one call, so without a race
braid's part of one is the growth of init and call, less that of NCCL's init alone.
"""

import argparse
import ctypes
import json
import os
import subprocess
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20
SMALL, LARGE = 1 * MIB, 64 * MIB
NCCL_ID_BYTES, NCCL_FLOAT, NCCL_SUM = 128, 7, 0


class NcclId(ctypes.Structure):
    _fields_ = (("internal", ctypes.c_byte * NCCL_ID_BYTES),)


# ---- one rank ----


class Rank:
    def __init__(self) -> None:
        import torch
        import torch.distributed as dist

        self.torch, self.dist = torch, dist
        self.rank = int(os.environ["RANK"])
        num_gpus = torch.cuda.device_count()
        torch.cuda.set_device(self.rank % num_gpus)
        if int(os.environ["WORLD_SIZE"]) > num_gpus:
            os.environ["NCCL_HOSTID"] = f"rank {self.rank}"
        dist.init_process_group("nccl")
        self.size = dist.get_world_size()
        self.store = dist.distributed_c10d._get_default_store()
        self.nccl = ctypes.CDLL(os.environ.get("LD_PRELOAD") or "libnccl.so.2")
        self.sharers = -(-self.size // num_gpus)
        self.num_meetings = 0
        self.before = 0.0
        self.stages: dict[str, float] = {}

    def meet(self) -> None:
        """Not by NCCL, which would connect something."""
        self.num_meetings += 1
        name = f"meeting {self.num_meetings}"
        if self.store.add(name, 1) == self.size:
            self.store.set(f"{name} over", "")
        self.store.wait([f"{name} over"], timedelta(seconds=120))

    def used_mib(self) -> float:
        """Of this GPU, without what torch holds, by each of those who share it."""
        torch = self.torch
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        self.meet()
        free, total = torch.cuda.mem_get_info()
        self.meet()  # nobody goes on before all have looked
        held = torch.cuda.memory_reserved()
        self.store.set(f"held {self.num_meetings} {self.rank}", str(held))
        every = range(self.rank % torch.cuda.device_count(), self.size, torch.cuda.device_count())
        held_by_all = sum(int(self.store.get(f"held {self.num_meetings} {r}")) for r in every)
        return (total - free - held_by_all) / self.sharers / MIB

    def note(self, stage: str) -> None:
        self.stages[stage] = round(self.used_mib() - self.before, 1)

    def calls(self, message: int, group: Any) -> None:
        """All five, of so many bytes of all ranks together."""
        torch, dist = self.torch, self.dist
        block = message // self.size // 2
        one = torch.ones(block, dtype=torch.bfloat16, device="cuda")
        many = torch.ones(block * self.size, dtype=torch.bfloat16, device="cuda")
        out = torch.empty_like(many)
        for _ in range(2):
            dist.all_reduce(many, group=group)
            dist.all_gather_into_tensor(out, one, group=group)
            dist.reduce_scatter_tensor(one, out, group=group)
            dist.broadcast(many, 0, group=group)
            dist.all_to_all_single(out, many, group=group)
        torch.cuda.synchronize()

    def communicator(self, name: str) -> int:
        """Of all ranks, by the functions that programs call; never given back."""
        identity = NcclId()
        if self.rank == 0:
            self.ask("ncclGetUniqueId", ctypes.byref(identity))
            self.store.set(name, bytes(identity).hex())
        identity = NcclId.from_buffer_copy(bytes.fromhex(self.store.get(name).decode()))
        made = ctypes.c_void_p()
        self.ask("ncclCommInitRank", ctypes.byref(made), self.size, identity, self.rank)
        assert made.value is not None
        return made.value

    def ask(self, function: str, *arguments: Any) -> None:
        """Of the library in the program, or what stands before it."""
        answer = getattr(self.nccl, function)(*arguments)
        if answer != 0:
            raise RuntimeError(f"{function}: {answer}")

    def all_reduce_on(self, communicator: int) -> None:
        one = self.torch.ones(1, device="cuda")
        self.ask(
            "ncclAllReduce", ctypes.c_void_p(one.data_ptr()), ctypes.c_void_p(one.data_ptr()),
            ctypes.c_size_t(1), NCCL_FLOAT, NCCL_SUM, ctypes.c_void_p(communicator),
            ctypes.c_void_p(self.torch.cuda.current_stream().cuda_stream),
        )  # fmt: skip
        self.torch.cuda.synchronize()

    def run(self) -> dict[str, Any]:
        torch, dist = self.torch, self.dist
        torch.zeros(1, device="cuda")
        self.before = self.used_mib()
        dist.all_reduce(torch.ones(1, device="cuda"))
        self.note("one all_reduce of one element")
        self.calls(SMALL, None)
        self.note("and all calls of 1 MiB")
        group = dist.new_group(list(range(self.size)))
        self.calls(SMALL, group)
        self.note("and the same on another communicator")
        self.calls(LARGE, None)
        self.note("and all calls of 64 MiB on the first")
        for name in ("a third", "a fourth"):
            made = self.communicator(name)
            self.note(f"and the init of {name}")
            self.all_reduce_on(made)
            self.note(f"and one all_reduce of one element on {name}")
        return {
            "device": torch.cuda.get_device_name(),
            "nccl": ".".join(map(str, torch.cuda.nccl.version())),
            "mib_per_rank": self.stages,
        }


# ---- all of them ----


def ways(before: str) -> dict[str, tuple[str, str]]:
    """What is preloaded, and BRAID_TUNE."""
    drop_in = os.environ.get("BRAID_NCCL_DROP_IN", str(ROOT / "python/braid/libbraid-nccl.so"))
    found = {
        "NCCL": ("", "auto"),
        "braid before": (before, "auto"),
        "braid": (drop_in, "auto"),
        "braid without a race": (drop_in, "off"),
    }
    return {name: way for name, way in found.items() if way[0] or name == "NCCL"}


def run_way(ranks: int, preload: str, tune: str) -> dict[str, Any]:
    environment = dict(os.environ, NCCL_NVLS_ENABLE="0", NCCL_SOCKET_IFNAME="lo", BRAID_TUNE=tune)
    environment.update(NCCL_IB_DISABLE="1", TORCH_SYMM_MEM_DISABLE_MULTICAST="1")
    if preload:
        environment["LD_PRELOAD"] = preload
    with tempfile.TemporaryDirectory() as folder:
        environment["BRAID_CACHE_DIR"] = environment["NCCL_MEMORY_OUT"] = folder
        command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}"]
        command += ["--master-port=29617", __file__, str(ranks)]
        subprocess.run(command, env=environment, timeout=150, check=True)
        result: dict[str, Any] = json.loads((Path(folder) / "rank0.json").read_text())
    return result


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("ranks", type=int)
    parser.add_argument("--before", default="")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--commit", default="")
    args = parser.parse_args()
    if "RANK" in os.environ:
        rank = Rank()
        result = rank.run()
        if rank.rank == 0:
            out = Path(os.environ["NCCL_MEMORY_OUT"]) / "rank0.json"
            out.write_text(json.dumps(result))
        rank.meet()
        os._exit(0)  # nothing of it is to be destroyed in order
    runs = {}
    for name, (preload, tune) in ways(args.before).items():
        runs[name] = run_way(args.ranks, preload, tune)
        print(name, json.dumps(runs[name]["mib_per_rank"]), flush=True)
        if args.json:  # also of the runs so far, if a later one fails
            record = {
                "schema": "braid.drop_in_memory/1",
                "command": " ".join(sys.argv),
                "date": datetime.now(UTC).isoformat(timespec="seconds"),
                "commit": args.commit,
                "ranks": args.ranks,
                "runs": runs,
            }
            args.json.write_text(json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
