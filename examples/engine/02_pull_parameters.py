"""Workers pull a trainer's parameters, each when it likes: the trainer only says where they are,
and waits until all have read a version before it makes the next.

Run: python examples/engine/02_pull_parameters.py
"""

import asyncio
import multiprocessing as mp

import numpy as np

import braid

WORKERS, VERSIONS, COUNT = 2, 3, 1 << 20


async def pull(name, from_trainer, to_trainer):
    weights = np.zeros(COUNT, np.float32)
    with braid.Engine(name, nics="none") as engine, engine.register(weights) as mine:
        to_trainer.put(engine.address)
        trainer, parameters = await asyncio.to_thread(from_trainer.get, timeout=60)
        for _ in range(VERSIONS):
            version = (await engine.recv_async(timeout=60)).data[0]
            await engine.read(mine, parameters, notify=b"read")  # behind the last byte
            good = bool((weights == version).all())
            await engine.send(trainer, f"{name} has version {version}: {good}".encode())


def work(name, from_trainer, to_trainer):
    asyncio.run(pull(name, from_trainer, to_trainer))


def train(from_trainer, to_trainer):
    weights = np.zeros(COUNT, np.float32)
    with braid.Engine("trainer", nics="none") as engine, engine.register(weights) as mine:
        peers = [to_trainer.get(timeout=60) for _ in range(WORKERS)]
        for _ in range(WORKERS):
            from_trainer.put((engine.address, mine.descriptor))
        for version in range(1, VERSIONS + 1):
            weights[:] = version
            for ticket in [engine.send(peer, bytes([version])) for peer in peers]:
                ticket.wait()
            for _ in range(WORKERS):
                engine.take_notification(timeout=60)  # one of them has read all of it
            for _ in range(WORKERS):
                print(engine.recv(timeout=60).data.decode())


if __name__ == "__main__":
    spawn = mp.get_context("spawn")
    from_trainer, to_trainer = spawn.Queue(), spawn.Queue()
    names = [f"worker {i}" for i in range(WORKERS)]
    workers = [spawn.Process(target=work, args=(n, from_trainer, to_trainer)) for n in names]
    for worker in workers:
        worker.start()
    train(from_trainer, to_trainer)
    for worker in workers:
        worker.join(60)
