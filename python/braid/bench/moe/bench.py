"""What benches of one number of tokens have in common."""

import numpy as np

import braid
from braid.bench.moe.deepep import DeepEp
from braid.bench.moe.routings import Shape


class Bench:
    """Of every rank."""

    def __init__(
        self,
        comm: braid.Comm,
        shape: Shape,
        tokens: int,
        routing: str,
        deepep: DeepEp | None = None,
    ) -> None:
        self.comm, self.shape, self.tokens, self.routing = comm, shape, tokens, routing
        self.deepep = deepep
        self.name = f"{shape.name} {tokens} tokens {routing}"

    def of_all(self, number: int) -> int:
        """The sum of all ranks'."""
        return int(self.comm.all_reduce(np.array([number]))[0])
