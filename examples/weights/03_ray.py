"""The toy of 02_toy_rl.py with actors of Ray for its ranks, which may be on different nodes. Ray
carries descriptors and what the policy acts on; weights go from the trainers' memory into the
inference ranks'.

Run: python examples/weights/03_ray.py     (pip install ray)
"""

import importlib
import os
import secrets
import socket

import numpy as np
import ray

import braid
from braid import weights as w

toy = importlib.import_module("02_toy_rl")


@ray.remote
class Trainer:
    def place(self):
        """This actor's node, and a port of it that is free now."""
        with socket.create_server(("", 0)) as server:
            return ray.util.get_node_ip_address(), server.getsockname()[1]

    def describe(self, rank, environment):
        os.environ.update(environment)
        self.rank, self.comm = rank, braid.init(progress=False)
        self.engine = braid.Engine(f"trainer {rank}")
        rng = np.random.default_rng(1)
        whole = {n: rng.normal(size=s) / np.sqrt(s[0]) for n, s in toy.SHAPES.items()}
        self.shards = {n: np.split(a, toy.RANKS)[rank].copy() for n, a in whole.items()}
        self.sender = w.Sender(
            self.engine,
            rank,
            [
                w.Parameter(n, a, toy.SHAPES[n], start=(rank * len(a), 0))
                for n, a in self.shards.items()
            ],
        )
        return self.sender.describe()

    def join(self, told):
        self.sender.join(told)

    def update(self, step):
        """Returns when all inference ranks serve it: every route's checksum was compared there."""
        self.sender.update(step)

    def learn(self, batch):
        ours = [np.split(part, toy.RANKS)[self.rank] for part in batch]
        whole = {n: self.comm.all_gather(a) for n, a in self.shards.items()}
        for name, gradient in toy.gradient(whole, *ours).items():
            self.shards[name] += 2.0 * self.comm.reduce_scatter(gradient) / toy.RANKS


@ray.remote
class Policy:
    def describe(self, rank):
        each = toy.HIDDEN // toy.RANKS
        self.first, self.second = np.zeros((toy.INPUTS, each)), np.zeros((each, toy.ACTIONS))
        self.engine = braid.Engine(f"worker {rank}")
        self.receiver = w.Receiver(
            self.engine,
            rank,
            [
                w.Parameter("first", self.first, toy.SHAPES["first"], start=(0, rank * each)),
                w.Parameter("second", self.second, toy.SHAPES["second"], start=(rank * each, 0)),
            ],
        )
        return self.receiver.describe()

    def join(self, told):
        self.receiver.join(told)

    def act(self, step, x):
        self.receiver.wait(step)
        return np.maximum(x @ self.first, 0) @ self.second


def everybody(actors, method, *arguments):
    return ray.get([getattr(actor, method).remote(*arguments) for actor in actors])


if __name__ == "__main__":
    token = {"BRAID_JOB_TOKEN": secrets.token_hex(16)}
    ray.init(runtime_env={"env_vars": token}, log_to_driver=False)
    trainers = [Trainer.remote() for _ in range(toy.RANKS)]
    policy = [Policy.remote() for _ in range(toy.RANKS)]
    places = everybody(trainers, "place")
    head, port = places[0]
    waiting = []
    for rank, trainer in enumerate(trainers):
        local = sum(place[0] == places[rank][0] for place in places[:rank])
        environment = {
            "RANK": str(rank),
            "LOCAL_RANK": str(local),
            "WORLD_SIZE": str(toy.RANKS),
            "MASTER_ADDR": head,
            "MASTER_PORT": str(port),
        }
        waiting.append(trainer.describe.remote(rank, environment))
    waiting += [actor.describe.remote(rank) for rank, actor in enumerate(policy)]
    everybody([*trainers, *policy], "join", ray.get(waiting))
    rng, rewards = np.random.default_rng(2), []
    for step in range(toy.STEPS + 1):
        everybody(trainers, "update", step)
        x = rng.normal(size=(toy.BATCH, toy.INPUTS))
        batch = toy.choose(x, sum(everybody(policy, "act", step, x)), rng)
        rewards.append(batch[2].mean())
        if step % 10 == 0:
            print(f"step {step:2}: reward {np.mean(rewards[-10:]):.2f}")
        everybody(trainers, "learn", batch)
    is_up = np.mean(rewards[-10:]) > rewards[0] + 0.2
    print(f"the reward went up: {is_up}")
