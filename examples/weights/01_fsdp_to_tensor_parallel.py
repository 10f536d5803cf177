"""Four trainer ranks that hold rows of every parameter (FSDP) send their weights to two inference
ranks that hold rows of some and columns of others (tensor parallelism). The plan is made once, from
what all have told; each step is one call, and the old version is served until the new one is whole.

Run: python examples/weights/01_fsdp_to_tensor_parallel.py
"""

import multiprocessing as mp
import queue
import zlib

import numpy as np

import braid
from braid import weights as w

TRAINERS, WORKERS, STEPS = 4, 2, 3
SHAPES = {"embed": (512, 64)} | {
    f"layers.{n}.{name}": shape
    for n in range(4)
    for name, shape in {"up": (256, 64), "down": (64, 256), "norm": (64,)}.items()
}


def cut(name, is_trainer):
    if is_trainer:
        return w.Shard(0)
    return w.Replicate() if "norm" in name else w.Shard(1 if "down" in name else 0)


def values(name, step):
    """What a step makes of a parameter; of another name something else."""
    count = int(np.prod(SHAPES[name]))
    return (
        np.random.default_rng([step, zlib.crc32(name.encode())])
        .random(count, np.float32)
        .reshape(SHAPES[name])
    )


def parts(rank, count, is_trainer):
    """This rank's arrays, and where in the whole parameters they are."""
    arrays, parameters = {}, []
    for name, shape in SHAPES.items():
        ((start, size),) = w.boxes(shape, (count,), (rank,), [cut(name, is_trainer)])
        arrays[name] = np.zeros(size, np.float32), tuple(map(slice, start, np.add(start, size)))
        parameters.append(w.Parameter(name, arrays[name][0], shape, start=start))
    return arrays, parameters


def train(rank, tell, told):
    arrays, parameters = parts(rank, TRAINERS, True)
    with (
        braid.Engine(f"trainer {rank}", nics="none") as engine,
        w.Sender(engine, rank, parameters) as sender,
    ):
        tell.put(sender.describe())
        table = sender.join(told.get(timeout=60))
        for step in range(1, STEPS + 1):
            for name, (array, box) in arrays.items():
                array[...] = values(name, step)[box]
            sender.update(step)
        if rank == 0:
            tell.put(f"{len(table.routes)} routes; {table.bytes_sent()} bytes sent a step")


def serve(rank, tell, told):
    arrays, parameters = parts(rank, WORKERS, False)
    right, seen = queue.SimpleQueue(), []

    def resumed(step):
        seen.append(all((a == values(n, step)[box]).all() for n, (a, box) in arrays.items()))
        right.put(step)

    with (
        braid.Engine(f"worker {rank}", nics="none") as engine,
        w.Receiver(engine, rank, parameters, on_resume=resumed) as receiver,
    ):
        tell.put(receiver.describe())
        receiver.join(told.get(timeout=60))
        for _ in range(STEPS):
            right.get(timeout=60)
        good = sum(seen)
        tell.put(f"worker {rank}: {good} of {STEPS} versions are right")


if __name__ == "__main__":
    spawn = mp.get_context("spawn")
    tell, tolds = spawn.Queue(), [spawn.Queue() for _ in range(TRAINERS + WORKERS)]
    ranks = [(train, n) for n in range(TRAINERS)] + [(serve, n) for n in range(WORKERS)]
    processes = [
        spawn.Process(target=target, args=(rank, tell, told))
        for (target, rank), told in zip(ranks, tolds, strict=True)
    ]
    for process in processes:
        process.start()
    everybody = [tell.get(timeout=60) for _ in ranks]
    for told in tolds:
        told.put(everybody)
    for process in processes:
        process.join(60)
    lines = []
    while True:
        try:
            lines.append(tell.get(timeout=0.2))
        except queue.Empty:
            break
    print(*sorted(lines), sep="\n")
