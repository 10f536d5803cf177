"""vLLM's weight transfer engine "braid", written for vLLM 0.32.

In every vLLM process (an entry point of the group vllm.general_plugins, or at its start):

    from braid.weights.doors import vllm; vllm.register()

    LLM(..., weight_transfer_config=WeightTransferConfig(backend="braid"))

The trainer: BraidTrainerEngine.trainer_init(BraidTrainerInfo(rank=0, workers=2), client, source),
then send_weights() in each step. Rank 0 sends, as with vLLM's own backends: tensors whole, in
buckets, to every worker at once; each loads what it needs (model.load_weights under vLLM's
layerwise reload, so the workers must be paused).
"""

import threading
from dataclasses import dataclass, field
from typing import Any, ClassVar

from vllm.distributed.weight_transfer.base import (
    TrainerInitInfo,
    TrainerWeightTransferEngine,
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)

import braid
from braid.weights.doors.tensors import tensor_of
from braid.weights.stream import StreamReceiver, StreamSender

BUCKET = 1 << 28
_QUICK_S = 5.0
"""For the other side, when ours has failed: it may wait for what does not come any more."""


@dataclass
class BraidInitInfo(WeightTransferInitInfo):
    """What each worker is told: the trainer's address (hexadecimal), and engine's arguments."""

    trainer: str
    bucket: int = BUCKET
    engine: dict[str, Any] = field(default_factory=dict)


@dataclass
class BraidUpdateInfo(WeightTransferUpdateInfo):
    """Which version comes."""

    version: int
    timeout: float = 300.0


class BraidWeightEngine(WeightTransferEngine):
    """A worker's side."""

    init_info_cls = BraidInitInfo
    update_info_cls = BraidUpdateInfo

    def init_transfer_engine(self, init_info: BraidInitInfo) -> None:
        rank = int(self.parallel_config.rank)
        data_rank = int(getattr(self.parallel_config, "data_parallel_index", 0) or 0)
        rank += data_rank * int(self.parallel_config.world_size)
        self._engine = braid.Engine(f"vllm weights {rank}", **init_info.engine)
        self._stream = StreamReceiver(self._engine, rank, init_info.bucket)
        self._stream.join(bytes.fromhex(init_info.trainer))

    def start_weight_update(self) -> None:
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: BraidUpdateInfo) -> None:
        device = self.device
        self.model.load_weights(
            (name, tensor_of(dtype, shape, data).to(device))
            for name, dtype, shape, data in self._stream.receive(
                update_info.version, update_info.timeout
            )
        )

    def finish_weight_update(self) -> None:
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        finalize_layerwise_reload(self.model, self.vllm_config.model_config)

    def shutdown(self) -> None:
        if hasattr(self, "_stream"):
            self._stream.close()
            self._engine.close()


@dataclass
class BraidTrainerInfo(TrainerInitInfo):
    """The trainer's side: how many workers there are, and engine's arguments for both sides."""

    backend: ClassVar[str] = "braid"

    workers: int = 1
    bucket: int = BUCKET
    engine: dict[str, Any] = field(default_factory=dict)
    worker_engine: dict[str, Any] = field(default_factory=dict)


class BraidTrainerEngine(TrainerWeightTransferEngine):
    """The trainer's side. Every rank iterates the source, which may gather; rank 0 sends."""

    init_info_cls = BraidTrainerInfo

    @classmethod
    def trainer_init(cls, init_info: BraidTrainerInfo, client: Any, source: Any) -> Any:
        made = cls.__new__(cls)
        made._info, made._client, made._source, made._version = init_info, client, source, 0
        if init_info.rank == 0:
            made._engine = braid.Engine("trainer of vllm", **init_info.engine)
            made._stream = StreamSender(made._engine, init_info.bucket)
            told = {
                "trainer": made._stream.address.hex(),
                "bucket": init_info.bucket,
                "engine": init_info.worker_engine,
            }
            _beside(
                lambda: client.init_weight_transfer_engine(told),
                lambda: made._stream.gather(init_info.workers),
            )
        return made

    def send_weights(self) -> None:
        """One step: the workers load what this rank sends at the same time."""
        self._version += 1
        if self._info.rank != 0:
            for _ in self._source:
                continue
            return
        self._client.start_weight_update()
        _beside(
            lambda: self._client.update_weights({"version": self._version}),
            lambda: self._stream.send(iter(self._source), self._version),
        )
        self._client.finish_weight_update(str(self._version))

    def shutdown(self) -> None:
        if self._info.rank == 0:
            self._stream.close()
            self._engine.close()


def _beside(theirs: Any, ours: Any) -> None:
    """Both at once: `theirs` waits for what `ours` does. The first error is raised, and `theirs`
    may go on then.
    """
    errors: list[BaseException] = []

    def run() -> None:
        try:
            theirs()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        ours()
    except BaseException as error:
        errors.insert(0, error)
    thread.join(_QUICK_S if errors else None)
    if errors:
        raise errors[0]


def register() -> None:
    """Makes the name "braid" known to vLLM's factory, in this process."""
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    WeightTransferEngineFactory.register_engine("braid", BraidWeightEngine)
