"""A toy of reinforcement learning: two trainer ranks share every parameter by rows (FSDP), two
inference ranks share the policy by its hidden units (tensor parallelism). In every step the
inference ranks act, the trainers learn from the rewards, and the new weights go over. The reward
goes up.

Run: python examples/weights/02_toy_rl.py
"""

import multiprocessing as mp
import os

import numpy as np

import braid
from braid import weights as w
from braid.launch import free_port

RANKS, STEPS, BATCH, INPUTS, HIDDEN, ACTIONS = 2, 40, 256, 8, 32, 4
SHAPES = {"first": (INPUTS, HIDDEN), "second": (HIDDEN, ACTIONS)}
RULE = np.random.default_rng(0).normal(size=(INPUTS, ACTIONS))


def rollout(ask, version, rng):
    """Contexts, the actions that the inference ranks' policy takes, and what they were worth."""
    x = rng.normal(size=(BATCH, INPUTS))
    for pipe in ask:
        pipe.send((version, x))
    return choose(x, sum(pipe.recv() for pipe in ask), rng)  # what tensor parallelism adds up


def choose(x, logits, rng):
    odds = np.exp(logits - logits.max(1, keepdims=True))
    odds /= odds.sum(1, keepdims=True)
    actions = (odds.cumsum(1) > rng.random((BATCH, 1))).argmax(1)
    return x, actions, (actions == (x @ RULE).argmax(1)).astype(float), odds


def gradient(weights, x, actions, rewards, odds):
    """Of the mean reward (REINFORCE, with the batch's mean as its baseline)."""
    hidden = np.maximum(x @ weights["first"], 0)
    ahead = (np.eye(ACTIONS)[actions] - odds) * (rewards - rewards.mean())[:, None] / len(x)
    back = (ahead @ weights["second"].T) * (hidden > 0)
    return {"first": x.T @ back, "second": hidden.T @ ahead}


def train(rank, environment, pipe):
    os.environ.update(environment)
    with braid.init(progress=False) as comm, braid.Engine(f"trainer {rank}", nics="none") as engine:
        rng = np.random.default_rng(1)
        whole = {n: rng.normal(size=s) / np.sqrt(s[0]) for n, s in SHAPES.items()}
        shards = {n: np.split(a, RANKS)[rank].copy() for n, a in whole.items()}
        parameters = [
            w.Parameter(n, a, SHAPES[n], start=(rank * len(a), 0)) for n, a in shards.items()
        ]
        with w.Sender(engine, rank, parameters) as sender:
            pipe.send(sender.describe())
            sender.join(pipe.recv())
            for step in range(STEPS + 1):
                sender.update(step)
                pipe.send(step)
                batch = [np.split(part, RANKS)[rank] for part in pipe.recv()]
                whole = {n: comm.all_gather(a) for n, a in shards.items()}
                for name, ours in gradient(whole, *batch).items():
                    shards[name] += 2.0 * comm.reduce_scatter(ours) / RANKS


def act(rank, environment, pipe):
    del environment
    each = HIDDEN // RANKS
    first, second = np.zeros((INPUTS, each)), np.zeros((each, ACTIONS))
    parameters = [
        w.Parameter("first", first, SHAPES["first"], start=(0, rank * each)),
        w.Parameter("second", second, SHAPES["second"], start=(rank * each, 0)),
    ]
    with (
        braid.Engine(f"worker {rank}", nics="none") as engine,
        w.Receiver(engine, rank, parameters) as receiver,
    ):
        pipe.send(receiver.describe())
        receiver.join(pipe.recv())
        while (order := pipe.recv()) is not None:
            receiver.wait(order[0])
            pipe.send(np.maximum(order[1] @ first, 0) @ second)


def started(target):
    pipes = []
    job = {"WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    for rank in range(RANKS):
        ours, theirs = spawn.Pipe()
        environment = {**job, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        spawn.Process(target=target, args=(rank, environment, theirs)).start()
        theirs.close()
        pipes.append(ours)
    return pipes


if __name__ == "__main__":
    spawn = mp.get_context("spawn")
    trainers, workers = started(train), started(act)
    told = [pipe.recv() for pipe in (*trainers, *workers)]
    for pipe in (*trainers, *workers):
        pipe.send(told)
    rng, rewards = np.random.default_rng(2), []
    for step in range(STEPS + 1):
        for pipe in trainers:
            pipe.recv()
        batch = rollout(workers, step, rng)
        rewards.append(batch[2].mean())
        if step % 10 == 0:
            print(f"step {step:2}: reward {np.mean(rewards[-10:]):.2f}")
        for pipe in trainers:
            pipe.send(batch)
    for pipe in workers:
        pipe.send(None)
    is_up = np.mean(rewards[-10:]) > rewards[0] + 0.2
    print(f"the reward went up: {is_up}")
