"""checkpoint-engine's dialogue on a GPU: what a trainer sends is loaded by worker processes out of
memory that this process shares with them by CUDA IPC.

python3 tests/gpu/checkpoint.py         # needs one GPU, torch and pyzmq
python3 tests/gpu/checkpoint.py real    # with checkpoint-engine's own worker, where it is installed
python3 tests/gpu/checkpoint.py cpu     # the stand-in with memory of the host

Two workers share the GPU. Each is a stand-in that does as checkpoint-engine 0.4.2's does. Every
element of every tensor is compared, on the GPU. Then one worker cannot load a tensor, and one is
killed amid a version: trainer and server are told.
"""

import functools
import multiprocessing as mp
import os
import signal
import sys
import threading
import time
from concurrent.futures import Future
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import zmq

import braid
from braid.weights.doors import checkpoint
from braid.weights.stream import StreamReceiver, StreamSender

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))
from checkpoint_worker import stand_in

DEVICE = "cpu" if "cpu" in sys.argv[1:] else "cuda"
LIMIT_S, LATE_S = 30, 4.0
BUCKET, SHARED = 1 << 20, 4 << 20  # so little that a trainer waits for what is loaded
NAMES = ("GPU-a", "GPU-b")
DTYPES = (torch.float32, torch.bfloat16, torch.uint8, torch.int64)
NO_ROOM, DIES = "w7", "w9"  # whose tensors a worker in trouble cannot load, or is killed at


def tensors(version: int) -> dict[str, torch.Tensor]:
    """By name, place and version; of lengths that are no multiples of anything."""
    found = {}
    for n in range(40):
        count = 1 + n * 7919 % 130_001
        places = torch.arange(count, dtype=torch.int64, device=DEVICE)
        found[f"w{n}"] = ((places * 7 + n * 31 + version * 11) % 251).to(DTYPES[n % len(DTYPES)])
    rows = torch.arange(3000 * 257, dtype=torch.int64, device=DEVICE).view(3000, 257)
    found["matrix"] = (rows * 5 + version).remainder(127).to(torch.bfloat16)
    return found | {"empty": torch.zeros(0, 3, device=DEVICE)}


def the_worker() -> Any:
    if "real" not in sys.argv[1:]:
        return stand_in
    from checkpoint_engine.worker import update_weights_from_ipc

    return update_weights_from_ipc


def work(name: str, pipe: Connection) -> None:
    """One version for each thing that the pipe says: (version, socket, trouble)."""
    context = zmq.Context()
    while (told := pipe.recv()) is not None:
        version, path, trouble = told
        held: dict[str, torch.Tensor] = {}
        hooks: list[str] = []
        load = functools.partial(take, held, trouble)
        try:
            the_worker()(context, path, None, run=load, post_hook=lambda: hooks.append(name))  # noqa: B023
        except Exception as error:
            pipe.send(f"failed: {type(error).__name__}: {error}")
            continue
        wanted = tensors(version)
        wrong = [
            key for key in wanted if key not in held or not torch.equal(held[key], wanted[key])
        ]
        extra = held.keys() - wanted.keys()
        pipe.send("right" if not wrong and not extra and len(hooks) == 1 else f"WRONG: {wrong}")


def take(held: dict[str, torch.Tensor], trouble: str, named: Any) -> None:
    for key, tensor in named:
        if trouble == "no room" and key == NO_ROOM:
            raise RuntimeError(f"no room for {key}")
        if trouble == "dies" and key == DIES:
            os.kill(os.getpid(), signal.SIGKILL)
        assert tensor.device.type == DEVICE
        held[key] = tensor.clone()
    if DEVICE == "cuda":
        torch.cuda.synchronize()


class Server:
    """Worker processes, and what they say of a version."""

    def __init__(self) -> None:
        self.pipes: dict[str, Any] = {}
        self.said: dict[str, str] = {}
        self.processes = []
        for name in NAMES:
            ours, theirs = mp.Pipe()
            process = mp.Process(target=work, args=(name, theirs), daemon=True)
            process.start()
            theirs.close()
            self.pipes[name] = ours
            self.processes.append(process)

    def ask(self, version: int, troubles: dict[str, str], sockets: dict[str, str]) -> None:
        for name, path in sockets.items():
            self.pipes[name].send((version, path, troubles.get(name, "")))
        for name in sockets:
            try:
                self.said[name] = self.pipes[name].recv()
            except EOFError:
                self.said[name] = "gone"

    def end(self) -> None:
        for pipe, process in zip(self.pipes.values(), self.processes, strict=True):
            if process.is_alive():
                pipe.send(None)
            process.join(LIMIT_S)


class Job:
    def __init__(self, sender: StreamSender, dialogues: list[checkpoint.Dialogue]) -> None:
        self.sender, self.dialogues = sender, dialogues
        self.server = Server()
        self.wrong = 0

    def expect(self, what: str, found: Any, wanted: Any) -> None:
        print(f"{what}: {found}")
        if found != wanted:
            self.wrong += 1
            print(f"  WRONG, {wanted} was expected")

    def step(self, version: int, troubles: dict[str, str], limit_s: float) -> tuple[str, str]:
        """What the server's side and the trainer's say; empty: all is well."""
        self.server.said.clear()
        sent: Future[str] = Future()
        named = tensors(version).items()
        thread = threading.Thread(
            target=lambda: sent.set_result(words(lambda: self.sender.send(named, version, limit_s)))
        )
        thread.start()
        ask = functools.partial(self.server.ask, version, troubles)
        theirs = words(lambda: checkpoint.update(self.dialogues, version, ask, limit_s))
        return theirs, sent.result(LIMIT_S)


def words(call: Any) -> str:
    try:
        call()
    except braid.Error as error:
        return f"{type(error).__name__}: {error}"
    return ""


def check(job: Job) -> None:
    for version in (1, 2):
        job.expect(f"version {version}", job.step(version, {}, LIMIT_S), ("", ""))
        job.expect("  workers", dict(job.server.said), dict.fromkeys(NAMES, "right"))
    theirs, ours = job.step(3, {"GPU-b": "no room"}, LIMIT_S)
    job.expect("version 3, no room: server told", f"no room for {NO_ROOM}" in theirs, True)
    job.expect("  trainer told", f"no room for {NO_ROOM}" in ours, True)
    job.expect("version 4", job.step(4, {}, LIMIT_S), ("", ""))
    job.expect("  workers", dict(job.server.said), dict.fromkeys(NAMES, "right"))
    began = time.monotonic()
    theirs, ours = job.step(5, {"GPU-b": "dies"}, LATE_S)
    took = time.monotonic() - began
    job.expect("version 5, a worker dies: server told", "'GPU-b' does not answer" in theirs, True)
    job.expect("  trainer told", bool(ours), True)
    job.expect("  within the deadline and what ending takes", took < LATE_S + 12, True)


def main() -> int:
    mp.set_start_method("spawn")
    ways = {"nics": "none"} | ({"device": 0} if DEVICE == "cuda" else {})
    with (
        braid.Engine(name="trainer", **ways) as ours,
        braid.Engine(name="beside-a", **ways) as first,
        braid.Engine(name="beside-b", **ways) as second,
        StreamSender(ours, BUCKET) as sender,
        StreamReceiver(first, 0, BUCKET) as a,
        StreamReceiver(second, 1, BUCKET) as b,
        checkpoint.Dialogue(a, NAMES[0], SHARED, DEVICE) as one,
        checkpoint.Dialogue(b, NAMES[1], SHARED, DEVICE) as two,
    ):
        for receiver in (a, b):
            receiver.join(sender.address)
        sender.gather(2, LIMIT_S)
        job = Job(sender, [one, two])
        check(job)
        job.server.end()
    print(f"checkpoint: by {the_worker().__module__}, {job.wrong} wrong")
    return 1 if job.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
