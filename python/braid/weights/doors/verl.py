"""verl's checkpoint engine "braid" (its interface as of 1dda039b9).

    checkpoint_engine.backend=braid
    checkpoint_engine.custom_backend_module=braid.weights.doors.verl

verl hands whole tensors over, so nothing is resharded here: trainer 0 sends each bucket to every
rollout's worker.
"""

from collections.abc import AsyncGenerator
from typing import Any

from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry

import braid
from braid.weights.doors.tensors import tensor_of
from braid.weights.stream import StreamReceiver, StreamSender


@CheckpointEngineRegistry.register("braid")
class BraidCheckpointEngine(CheckpointEngine):
    """One of these in every process of both sides; what it is follows from its rank."""

    def __init__(
        self, bucket_size: int = 1 << 28, engine: dict[str, Any] | None = None, **_: Any
    ) -> None:
        self._bucket = bucket_size
        self._options = engine or {}
        self._engine: braid.Engine | None = None
        self._sender: StreamSender | None = None
        self._receiver: StreamReceiver | None = None
        self._workers = 0

    def prepare(self) -> dict[str, Any]:
        """Before the others are known: an engine, and where it is reached."""
        if self._engine is None:
            self._engine = braid.Engine("verl", **self._options)
        return {"address": self._engine.address.data.hex()}

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[dict[str, Any]]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        """What init_process_group() of each rank is given: trainer 0 is the source."""
        source = metadata[0]["address"]
        trainers: dict[str, list[Any]] = {
            "rank": list(range(actor_wg_world_size)),
            "side": ["trainer"] * actor_wg_world_size,
            "workers": [rollout_world_size] * actor_wg_world_size,
            "source": [source] * actor_wg_world_size,
        }
        rollouts: dict[str, list[Any]] = {
            "rank": list(range(rollout_world_size)),
            "side": ["rollout"] * rollout_world_size,
            "workers": [rollout_world_size] * rollout_world_size,
            "source": [source] * rollout_world_size,
        }
        return trainers, rollouts

    def init_process_group(self, rank: int, side: str, workers: int, source: str) -> None:
        assert self._engine is not None, "prepare() comes first"
        self._workers = workers
        if side == "rollout":
            self._receiver = StreamReceiver(self._engine, rank, self._bucket)
            self._receiver.join(bytes.fromhex(source))
        elif rank == 0:
            self._sender = StreamSender(self._engine, self._bucket)

    def finalize(self) -> None:
        """After each update: the next one prepares anew."""
        for end in (self._sender, self._receiver, self._engine):
            if end is not None:
                end.close()
        self._engine = self._sender = self._receiver = None

    async def send_weights(self, weights: Any, global_steps: int | None = None) -> None:
        """Every trainer's rank iterates, which may gather; rank 0 sends."""
        if self._sender is None:
            for _ in weights:
                continue
            return
        import asyncio

        sender, step = self._sender, global_steps or 0
        await asyncio.to_thread(sender.gather, self._workers)
        await asyncio.to_thread(sender.send, weights, step)

    async def receive_weights(
        self, global_steps: int | None = None
    ) -> AsyncGenerator[tuple[str, Any], None]:
        """(name, tensor), whole."""
        import asyncio

        assert self._receiver is not None, "a rollout's rank receives"
        tensors = self._receiver.receive(global_steps or 0)
        while (found := await asyncio.to_thread(next, tensors, None)) is not None:
            name, dtype, shape, data = found
            yield name, tensor_of(dtype, shape, data)
