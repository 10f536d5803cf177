"""vLLM's parts that BraidConnector meets, as far as it meets them: its base classes, and an engine
that calls a connector in the order that was recorded of vLLM 0.32.

The model is none: a token's cache is made of the token and its place, and the next token of the
whole cache, so that one wrong byte of one page changes it.
"""

import enum
import sys
import time
import types
from dataclasses import dataclass, field
from typing import Any

import numpy as np

BLOCK, HEADS, LAYERS, TOKEN = 8, 4, 3, 16
LIMIT_S = 40


class KVConnectorRole(enum.Enum):
    SCHEDULER = 0
    WORKER = 1


class Base:
    """KVConnectorBase_V1: what it keeps, and nothing that the connector must bring."""

    def __init__(self, vllm_config, role, kv_cache_config):
        self._vllm_config, self._role, self._kv_cache_config = vllm_config, role, kv_cache_config
        self._connector_metadata = None

    def bind_connector_metadata(self, connector_metadata):
        self._connector_metadata = connector_metadata

    def clear_connector_metadata(self):
        self._connector_metadata = None

    def _get_connector_metadata(self):
        assert self._connector_metadata is not None
        return self._connector_metadata


def install(monkeypatch) -> Any:
    """The stand-in as `vllm`; BraidConnector, made for it."""
    base = types.ModuleType("vllm.distributed.kv_transfer.kv_connector.v1.base")
    base.KVConnectorBase_V1 = Base
    base.SupportsHMA = type("SupportsHMA", (), {})
    base.KVConnectorRole = KVConnectorRole
    base.KVConnectorMetadata = type("KVConnectorMetadata", (), {})
    base.KVConnectorHandshakeMetadata = type("KVConnectorHandshakeMetadata", (), {})
    state = types.ModuleType("vllm.distributed.parallel_state")
    state.get_tensor_model_parallel_rank = lambda: Vllm.rank_in_making
    for module in (base, state):
        parts = module.__name__.split(".")
        for count in range(1, len(parts)):
            name = ".".join(parts[:count])
            monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
        monkeypatch.setitem(sys.modules, module.__name__, module)
    for name in [name for name in sys.modules if name.startswith("braid.kv.vllm")]:
        monkeypatch.delitem(sys.modules, name)
    from braid.kv.vllm import BraidConnector

    return BraidConnector


class Spaces(types.SimpleNamespace):
    pass


@dataclass
class Request:
    """What a connector reads of vLLM's."""

    request_id: str
    prompt_token_ids: list[int]
    max_tokens: int
    kv_transfer_params: dict | None
    status: Any = None
    num_cached_tokens: int = 0
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    state: str = "new"
    answer: dict | None = None


class Vllm:
    """One engine: a scheduler's connector, and one for each tensor-parallel worker."""

    rank_in_making = 0

    def __init__(self, connector, name, tp=1, chunk=1000, blocks=64, **extra):
        self.name, self.chunk = name, chunk
        extra = {
            "side_channel_port": 0,
            "side_channel_host": "127.0.0.1",
            "engine": {"nics": "none", "token": "a token of tests", "hosts": "127.0.0.1"},
            **extra,
        }
        transfer = Spaces(
            engine_id=name,
            kv_connector_extra_config=extra,
            get_from_extra_config=lambda key, default: extra.get(key, default),
        )
        text = Spaces(hidden_size=64, vocab_size=99, head_dim=4)
        self.config = Spaces(
            kv_transfer_config=transfer,
            cache_config=Spaces(block_size=BLOCK),
            parallel_config=Spaces(tensor_parallel_size=tp, data_parallel_index=0),
            model_config=Spaces(
                hf_config=Spaces(architectures=["Stand"]),
                hf_text_config=text,
                get_total_num_kv_heads=lambda: HEADS,
            ),
        )
        caches = Spaces(kv_cache_groups=[1])
        self.calls: list[str] = []
        shape = (blocks, HEADS // tp, BLOCK, TOKEN)
        self.caches = [[np.zeros(shape, np.uint8) for _ in range(LAYERS)] for _ in range(tp)]
        self.workers = []
        for rank in range(tp):
            Vllm.rank_in_making = rank
            worker = connector(self.config, KVConnectorRole.WORKER, caches)
            named = {f"model.layers.{n}.attn": Tensor(a) for n, a in enumerate(self.caches[rank])}
            worker.register_kv_caches(named)
            self.workers.append(worker)
        self.scheduler = connector(self.config, KVConnectorRole.SCHEDULER, caches)
        self.scheduler.set_xfer_handshake_metadata(
            {rank: worker.get_handshake_metadata() for rank, worker in enumerate(self.workers)}
        )
        self.free = list(range(1, blocks))
        self.requests: dict[str, Request] = {}
        self.finished_ids: set[str] = set()
        self.sent: dict[str, int] = {}
        self.received: dict[str, int] = {}
        self.preempt_next = ""
        self.as_new = {"loaded"}  # it is scheduled for the first time
        """States in which a request is told of as a new one; vLLM's second model runner is told so
        of a resumed one, too.
        """

    # --- requests ---

    def add(self, name, prompt, max_tokens, params=None) -> Request:
        request = Request(name, prompt, max_tokens, params)
        self.requests[name] = request
        self.scheduler.on_new_request(request)
        return request

    def abort(self, name) -> None:
        self._finish(self.requests[name], "FINISHED_ABORTED")

    def _alloc(self, request: Request, tokens: int) -> list[int]:
        wanted = -(-tokens // BLOCK) - len(request.blocks)
        new = [self.free.pop(0) for _ in range(max(0, wanted))]
        request.blocks += new
        return new

    # --- a step, in the recorded order ---

    def step(self) -> None:
        new, cached, scheduled, preempted = [], [], {}, self._preempt()
        for request in self.requests.values():
            if request.state == "new":
                count, is_async = self.scheduler.get_num_new_matched_tokens(request, 0)
                if count and is_async:
                    self._alloc(request, len(request.prompt_token_ids))
                    request.state = "loading"
                    self.scheduler.update_state_after_alloc(request, Blocks(request.blocks), count)
                    continue
                self.scheduler.update_state_after_alloc(request, Blocks([]), 0)
                request.state = "running"
                tokens = min(self.chunk, len(request.prompt_token_ids))
                self._alloc(request, tokens)
                scheduled[request.request_id] = tokens
                new.append(Spaces(
                    req_id=request.request_id, block_ids=(list(request.blocks),),
                    num_computed_tokens=0,
                ))  # fmt: skip
            elif request.state in self.as_new:
                name, _, _, computed = self._cached(request, scheduled)
                blocks = (list(request.blocks),)
                new.append(Spaces(req_id=name, block_ids=blocks, num_computed_tokens=computed))
            elif request.state in ("running", "resumed"):
                cached.append(self._cached(request, scheduled))
        self._forward(new, cached, scheduled, preempted)

    def _cached(self, request: Request, scheduled: dict[str, int]):
        total = len(request.prompt_token_ids) + max(0, len(request.tokens) - 1)
        left = max(1, total + bool(request.tokens) - request.computed)
        tokens = min(self.chunk, left)
        blocks = self._alloc(request, request.computed + tokens)
        scheduled[request.request_id] = tokens
        is_resumed = request.state == "resumed"
        request.state = "running"
        return request.request_id, is_resumed, (blocks,), request.computed

    def _preempt(self) -> set[str]:
        if not self.preempt_next:
            return set()
        request, self.preempt_next = self.requests[self.preempt_next], ""
        self.free += request.blocks
        request.blocks, request.computed, request.state = [], 0, "resumed"
        return {request.request_id}

    def _forward(self, new, cached, scheduled, preempted) -> None:
        output = Spaces(
            scheduled_new_reqs=new,
            scheduled_cached_reqs=Spaces(
                req_ids=[c[0] for c in cached],
                resumed_req_ids={c[0] for c in cached if c[1]},
                new_block_ids=[c[2] if c[2][0] else None for c in cached],
                num_computed_tokens=[c[3] for c in cached],
            ),
            num_scheduled_tokens=scheduled,
            preempted_req_ids=preempted,
        )
        meta = self.scheduler.build_connector_meta(output)
        results = [self._work(rank, w, meta, scheduled) for rank, w in enumerate(self.workers)]
        self._after(results, scheduled)

    def _work(self, rank, worker, meta, scheduled):
        worker.handle_preemptions(meta)
        if scheduled:
            self._scribble(rank)
        worker.bind_connector_metadata(meta)
        for layer in range(LAYERS if scheduled else 0):
            worker.wait_for_layer_load(f"model.layers.{layer}.attn")
            for name, tokens in scheduled.items():
                self._compute(rank, layer, self.requests[name], tokens)
            worker.save_kv_layer(f"model.layers.{layer}.attn", None, None)
        worker.start_load_kv(None)
        worker.wait_for_save()
        sent, received = worker.get_finished(self.finished_ids)
        bad = worker.get_block_ids_with_load_errors()
        worker.clear_connector_metadata()
        return sent or set(), received or set(), bad

    def _scribble(self, rank) -> None:
        """Blocks that are free may hold anything."""
        for cache in self.caches[rank]:
            cache[self.free] = 0xEE

    def _compute(self, rank, layer, request, count) -> None:
        tokens = request.prompt_token_ids + request.tokens
        for place in range(request.computed, request.computed + count):
            page, slot = request.blocks[place // BLOCK], place % BLOCK
            cache = self.caches[rank][layer]
            for head in range(cache.shape[1]):
                named = rank * cache.shape[1] + head
                cache[page, head, slot] = cell(tokens[place], place, layer, named)

    def _after(self, results, scheduled) -> None:
        self.finished_ids = set()
        for sent, received, _ in results:
            for name in sent:
                self.sent[name] = self.sent.get(name, 0) + 1
            for name in received:
                self.received[name] = self.received.get(name, 0) + 1
        bad = set().union(*(bad for _, _, bad in results))
        for name, tokens in scheduled.items():
            self._advance(self.requests[name], tokens)
        done = {n for n, count in self.received.items() if count == len(self.workers)}
        for name in done:
            self._loaded(self.requests[name], bad)
        self.scheduler.update_connector_output(Spaces(finished_recving=done))
        for name in [n for n, count in self.sent.items() if count == len(self.workers)]:
            assert self.requests[name].state == "held", "reported before it was finished"
            del self.sent[name]
            self._release(self.requests[name])

    def _advance(self, request: Request, tokens: int) -> None:
        request.computed += tokens
        if request.computed >= len(request.prompt_token_ids) + len(request.tokens):
            request.tokens.append(self._next_token(request))
            if len(request.tokens) >= request.max_tokens:
                self._finish(request, "FINISHED_LENGTH_CAPPED")

    def _next_token(self, request: Request) -> int:
        """Of every byte of its cache."""
        held = np.concatenate(
            [np.stack(cache)[:, request.blocks] for cache in self.caches], axis=2
        )  # [layers, blocks, heads, slots, bytes]
        rows = held.swapaxes(1, 2).reshape(LAYERS, HEADS, -1, TOKEN)[:, :, : request.computed]
        weights = np.arange(1, rows.size + 1, dtype=np.int64).reshape(rows.shape)
        return int((rows.astype(np.int64) * weights).sum() % 97)

    def _loaded(self, request: Request, bad: set[int]) -> None:
        del self.received[request.request_id]
        if request.state == "held":  # aborted while it came
            self._release(request)
            return
        assert request.state == "loading"
        self.scheduler.update_state_after_alloc(request, Blocks(request.blocks), 0)
        if bad & set(request.blocks):
            self.free += request.blocks
            request.blocks, request.state, request.computed = [], "loaded", 0
            return  # kv_load_failure_policy="recompute"
        request.computed = len(request.prompt_token_ids) - 1  # the last one is computed again
        request.state = "loaded"

    def _finish(self, request: Request, how: str) -> None:
        was_loading = request.state == "loading"
        request.status = Spaces(name=how)
        keep, request.answer = self.scheduler.request_finished_all_groups(
            request, (list(request.blocks),)
        )
        request.state = "held"
        self.finished_ids.add(request.request_id)
        if not keep and not was_loading:
            self._release(request)

    def _release(self, request: Request) -> None:
        self.free += request.blocks
        request.blocks, request.state = [], "over"

    # --- for tests ---

    def run_until(self, is_so, *others) -> None:
        """Steps, and has the other engines step, until it is so."""
        self.wait_until(is_so, self, *others)

    def wait_until(self, is_so, *steps) -> None:
        """Has these engines step until it is so."""
        until = time.monotonic() + LIMIT_S
        while time.monotonic() < until:
            if is_so():
                return
            for engine in steps:
                engine.step()
            time.sleep(0.002)
        states = [(r.request_id, r.state) for r in self.requests.values()]
        raise AssertionError(f"{self.name}: {states}")

    def close(self) -> None:
        for worker in self.workers:
            worker.shutdown()
        self.scheduler.shutdown()


class Tensor:
    """As much of torch's tensor as a connector asks for."""

    def __init__(self, array) -> None:
        self._array = array
        self.shape, self.dtype, self.device = array.shape, array.dtype, Spaces(type="cpu")

    def data_ptr(self):
        return self._array.ctypes.data

    def stride(self):
        return tuple(n // self._array.itemsize for n in self._array.strides)

    def element_size(self):
        return self._array.itemsize


class Blocks:
    def __init__(self, ids) -> None:
        self._ids = list(ids)

    def get_unhashed_block_ids_all_groups(self):
        return (self._ids,)


def cell(token, place, layer, head) -> np.ndarray:
    seed = ((token * 1009 + place) * 31 + layer) * 31 + head
    return ((np.arange(TOKEN) * 37 + seed * 2654435761) >> 3).astype(np.uint8)
