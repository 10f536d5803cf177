"""KVConnectorBase_V1 as vLLM 0.32 calls it; the two sides do the work."""

import itertools
import os
import socket
from dataclasses import dataclass
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorRole,
    SupportsHMA,
)

from braid import kv
from braid.errors import Unsupported
from braid.kv.vllm.scheduler import SchedulerSide
from braid.kv.vllm.words import Params, StepOrders
from braid.kv.vllm.worker import WorkerSide

_numbers = itertools.count()


@dataclass
class BraidHandshake(KVConnectorHandshakeMetadata):
    """Where a worker's engine is reached."""

    address: bytes


@dataclass
class BraidMetadata(KVConnectorMetadata):
    """A step's orders."""

    orders: StepOrders


class BraidConnector(KVConnectorBase_V1, SupportsHMA):
    """Moves a request's KV cache from the vLLM that prefilled it to the one that decodes it."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        groups = getattr(kv_cache_config, "kv_cache_groups", ())
        if len(groups) > 1:
            raise Unsupported(
                f"BraidConnector: asked for one group of KV caches, the model has {len(groups)} "
                "(sliding windows or state spaces)"
            )
        self._config = vllm_config
        self._scheduler = SchedulerSide(vllm_config) if role == KVConnectorRole.SCHEDULER else None
        self._worker: WorkerSide | None = None

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: Any) -> str | None:
        """Heads before tokens in a block, so that any tensor-parallel slice is one write."""
        del vllm_config
        return "LBHNC"

    @property
    def _its_scheduler(self) -> SchedulerSide:
        assert self._scheduler is not None, "a call for the scheduler's side"
        return self._scheduler

    # --- worker ---

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        """Makes the engines; the caches stay registered until shutdown()."""
        names = sorted(kv_caches, key=_layer_number)
        tensors = [kv_caches[name] for name in names]
        layout = _layout(self._config, tensors)
        extra = dict(self._config.kv_transfer_config.kv_connector_extra_config or {})
        where = f"{socket.gethostname()}:{os.getpid()}.{next(_numbers)}"
        self._worker = WorkerSide(f"vllm {where} rank {layout.rank}", extra, tensors, layout)

    def get_handshake_metadata(self) -> BraidHandshake | None:
        return None if self._worker is None else BraidHandshake(self._worker.address)

    def handle_preemptions(self, kv_connector_metadata: Any) -> None:
        if self._worker is not None:
            self._worker.hold_back(kv_connector_metadata.orders)

    def bind_connector_metadata(self, connector_metadata: Any) -> None:
        super().bind_connector_metadata(connector_metadata)
        if self._worker is not None:
            self._worker.before_forward(connector_metadata.orders)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        del forward_context, kwargs
        if self._worker is not None:
            self._worker.run(self._get_connector_metadata().orders)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Loads are asynchronous: a request is scheduled when its pages are here."""

    def save_kv_layer(
        self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any
    ) -> None:
        del layer_name, kv_layer, attn_metadata, kwargs
        if self._worker is not None:
            self._worker.layer_done()

    def wait_for_save(self) -> None:
        if self._worker is not None:
            self._worker.after_forward()

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        if self._worker is None:
            return None, None
        sent, received = self._worker.results(finished_req_ids)
        return sent or None, received or None

    def get_block_ids_with_load_errors(self) -> set[int]:
        return set() if self._worker is None else self._worker.bad_pages()

    def shutdown(self) -> None:
        if self._worker is not None:
            self._worker.close()
            self._worker = None
        if self._scheduler is not None:
            self._scheduler.close()

    # --- scheduler ---

    def set_xfer_handshake_metadata(self, metadata: dict[int, Any]) -> None:
        self._its_scheduler.open_door({rank: found.address for rank, found in metadata.items()})

    def on_new_request(self, request: Any) -> None:
        self._its_scheduler.on_new_request(request)
        self._its_scheduler.note_request(request)

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        return self._its_scheduler.matched_tokens(request, num_computed_tokens)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        self._its_scheduler.after_alloc(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> BraidMetadata:
        return BraidMetadata(self._its_scheduler.orders(scheduler_output))

    def update_connector_output(self, connector_output: Any) -> None:
        self._its_scheduler.transferred(set(connector_output.finished_recving or ()))

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, Params | None]:
        return self._its_scheduler.finished(request, block_ids)

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, Params | None]:
        return self._its_scheduler.finished(request, list(block_ids[0]) if block_ids else [])


def _layer_number(name: str) -> int:
    """model.layers.17.self_attn.attn -> 17."""
    numbers = [int(part) for part in name.split(".") if part.isdigit()]
    if len(numbers) != 1:
        raise Unsupported(f"BraidConnector: the layer '{name}' has no number of its own")
    return numbers[0]


def _layout(config: Any, tensors: list[Any]) -> kv.Layout:
    """Of this worker, read from its tensors [blocks, heads, tokens, keys and values]."""
    model, parallel = config.model_config, config.parallel_config
    shape = list(tensors[0].shape)
    page_tokens = int(config.cache_config.block_size)
    if len(shape) != 4 or shape[2] != page_tokens:
        raise Unsupported(
            f"BraidConnector: asked for blocks [heads, {page_tokens} tokens, keys and values], "
            f"found the shape {shape}"
        )
    return kv.Layout(
        model=_model_words(model),
        dtype=str(tensors[0].dtype),
        layers=len(tensors),
        heads=int(model.get_total_num_kv_heads()),
        page_tokens=page_tokens,
        token_bytes=shape[3] * tensors[0].element_size(),
        tp=int(parallel.tensor_parallel_size),
        rank=_tensor_rank(),
    )


def _tensor_rank() -> int:
    from vllm.distributed.parallel_state import get_tensor_model_parallel_rank

    return int(get_tensor_model_parallel_rank())


def _model_words(model: Any) -> str:
    """What tells models apart, wherever their files lie."""
    text = model.hf_text_config
    kind = "/".join(getattr(model.hf_config, "architectures", None) or ["?"])
    sizes = [getattr(text, name, "?") for name in ("hidden_size", "vocab_size", "head_dim")]
    return f"{kind}, hidden {sizes[0]}, vocabulary {sizes[1]}, head {sizes[2]}"
