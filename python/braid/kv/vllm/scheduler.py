"""The scheduler's side: what a step's requests mean for their pages.

A prefiller's request (do_remote_decode) is given away: pulled, its pages are held when it has
finished; pushed, they go while it is computed. A decoder's (do_remote_prefill) is fetched into the
blocks that were allocated for it. Blocks are freed by vLLM when the worker says that it is over.
"""

import os
import time
from typing import Any

from braid.engine import Peer
from braid.kv.door import Door
from braid.kv.ending import log
from braid.kv.vllm.words import (
    Fetch,
    Give,
    Params,
    Remote,
    StepOrders,
    answer,
    name_of,
    params_of,
    remote_of,
    told,
)

_GOOD_ENDS = ("FINISHED_LENGTH_CAPPED", "FINISHED_STOPPED")
_RENEW_S = 2.0


class SchedulerSide:
    """One for each vLLM engine, in its scheduler's process."""

    def __init__(self, vllm_config: Any) -> None:
        config = vllm_config.kv_transfer_config
        extra = config.get_from_extra_config
        self.engine_id = str(config.engine_id)
        self._is_push = extra("transfer_mode", "pull") == "push"
        self._page_tokens = int(vllm_config.cache_config.block_size)
        self._tp = int(vllm_config.parallel_config.tensor_parallel_size)
        self._host = str(
            extra("side_channel_host", os.environ.get("VLLM_NIXL_SIDE_CHANNEL_HOST", "localhost"))
        )
        offset = int(getattr(vllm_config.parallel_config, "data_parallel_index", 0) or 0)
        port = int(
            extra("side_channel_port", os.environ.get("VLLM_NIXL_SIDE_CHANNEL_PORT", "5600"))
        )
        self._port = port + offset if port else 0
        self._door: Door | None = None
        self._orders = StepOrders()
        self._pushing: dict[str, str] = {}
        """Requests that are pushed and not finished, and as what."""
        self._given: set[str] = set()
        """Of those, the ones that the workers know."""
        self._computed: dict[str, int] = {}
        self._fetching: set[str] = set()
        self._waiting: dict[str, Remote] = {}
        self._renewed_at = 0.0

    # --- addresses ---

    def open_door(self, addresses: dict[int, bytes]) -> None:
        """The workers' engines, by their tensor-parallel ranks."""
        if self._door is None and addresses:
            peers = [Peer(addresses[rank]) for rank in sorted(addresses)]
            self._door = Door(self._host, self._port, self.engine_id, peers)

    def close(self) -> None:
        if self._door is not None:
            self._door.close()

    # --- requests ---

    def on_new_request(self, request: Any) -> None:
        """A decoder's request may wait for long: its lease at the prefiller is renewed. One that
        names no prefiller is computed here.
        """
        params = params_of(request)
        if not params.get("do_remote_prefill"):
            return
        if (remote := self._remote(request)) is None:
            params["do_remote_prefill"] = False
            return
        to_renew = Remote(remote.host, remote.port, remote.request, None)
        self._waiting[request.request_id] = to_renew  # goes to the workers again and again
        self._renewed_at = 0.0

    def matched_tokens(self, request: Any, computed: int) -> tuple[int, bool]:
        """All of the prompt comes from the prefiller, but what is in the local prefix cache."""
        params = params_of(request)
        if not params.get("do_remote_prefill") or self._remote(request) is None:
            return 0, False
        count = len(request.prompt_token_ids or []) - computed
        return (count, True) if count > 0 else (0, False)

    def after_alloc(self, request: Any, blocks: Any, external: int) -> None:
        """Blocks were allocated: a decoder's for what comes, a prefiller's for a first chunk."""
        params = params_of(request)
        if not params.get("do_remote_prefill"):
            return
        params["do_remote_prefill"] = False  # this is called again when the load is over
        self._waiting.pop(request.request_id, None)
        remote = self._remote(request)
        if remote is None:
            return
        tokens = len(request.prompt_token_ids or [])
        total = -(-tokens // self._page_tokens)
        first = (tokens - external) // self._page_tokens  # those before are in the prefix cache
        pages = blocks.get_unhashed_block_ids_all_groups()[0] if external > 0 else []
        mine = tuple(int(page) for page in pages[: total - first])
        if not mine:
            self._orders.lets_go[request.request_id] = remote
            return
        if remote.pages is not None:
            theirs = remote.pages[:total][first:]
            remote = Remote(remote.host, remote.port, remote.request, theirs)
        self._fetching.add(request.request_id)
        self._orders.fetches[request.request_id] = Fetch(remote, mine, tokens, first)

    def finished(self, request: Any, pages: list[int]) -> tuple[bool, Params | None]:
        """Whether the request's blocks are kept, and what its router is told."""
        name = request.request_id
        params = params_of(request)
        self._waiting.pop(name, None)
        given = self._pushing.pop(name, None)
        self._given.discard(name)
        self._computed.pop(name, None)
        if params.get("do_remote_prefill"):  # aborted before it was scheduled
            params["do_remote_prefill"] = False
            if (remote := self._remote(request)) is not None:
                self._orders.lets_go[name] = remote
            return False, None
        if not params.get("do_remote_decode"):
            if name in self._fetching:  # vLLM keeps its blocks until the worker has reported it
                self._orders.cancels.append(name)
            return False, None
        if request.status.name not in _GOOD_ENDS or not pages:
            if given is not None:
                self._orders.dropped.append(name)
            return given is not None, None
        return True, self._handed_over(request, pages, given)

    def _handed_over(self, request: Any, pages: list[int], given: str | None) -> Params:
        name = request.request_id
        tokens = len(request.prompt_token_ids or [])
        wire_name = given or self._wire_name(request)
        total = -(-tokens // self._page_tokens)
        if given is None:
            give = Give(wire_name, tuple(pages[:total]), tokens, is_computed=True)
            self._orders.gives[name] = give
        else:
            self._orders.completes.append(name)
        words = {
            "tp_size": self._tp,
            "remote_num_tokens": tokens,
            "transfer_mode": "push" if self._is_push else "pull",
            "remote_prefill_cached_tokens": max(0, int(getattr(request, "num_cached_tokens", 0))),
        }
        place = self._host, self._door.port if self._door else self._port
        return answer(wire_name, list(pages[:total]), self.engine_id, place, words)

    def transferred(self, received: set[str]) -> None:
        """What the workers have reported."""
        self._fetching -= received

    # --- steps ---

    def orders(self, output: Any) -> StepOrders:
        """For the workers, with this step; and a new page is begun."""
        if self._is_push:
            self._push(output)
        now = time.monotonic()
        if self._waiting and now - self._renewed_at > _RENEW_S:
            self._renewed_at = now
            self._orders.renews = dict(self._waiting)
        orders, self._orders = self._orders, StepOrders()
        return orders

    def note_request(self, request: Any) -> None:
        """A prefiller's request that will be pushed while it is computed."""
        params = params_of(request)
        if self._is_push and params.get("do_remote_decode"):
            self._pushing.setdefault(request.request_id, self._wire_name(request))
            self._computed[request.request_id] = len(request.prompt_token_ids or [])

    def _push(self, output: Any) -> None:
        for name in output.preempted_req_ids or ():
            if name in self._pushing:
                self._orders.preempted.append(name)
        for new in output.scheduled_new_reqs:
            if new.req_id in self._pushing:
                self._begin(new.req_id, self._clip(new.req_id, new.block_ids))
                self._part(output, new.req_id, new.num_computed_tokens)
        cached = output.scheduled_cached_reqs
        for number, name in enumerate(cached.req_ids):
            if name in self._pushing:
                self._grow(cached, number, name)
                self._part(output, name, cached.num_computed_tokens[number])

    def _begin(self, name: str, pages: tuple[int, ...]) -> None:
        """vLLM's second model runner is told of a request that is resumed as of a new one."""
        if name in self._given:
            self._orders.restarts[name] = pages
            return
        self._given.add(name)
        self._orders.gives[name] = Give(self._pushing[name], pages, self._computed[name], False)

    def _grow(self, cached: Any, number: int, name: str) -> None:
        new = cached.new_block_ids[number]
        if name in cached.resumed_req_ids:
            self._orders.restarts[name] = self._clip(name, new)
        elif new is not None and new[0]:
            self._orders.grows[name] = tuple(int(page) for page in new[0])

    def _part(self, output: Any, name: str, computed: int) -> None:
        tokens = min(computed + output.num_scheduled_tokens[name], self._computed[name])
        self._orders.parts[name] = tokens

    def _clip(self, name: str, groups: Any) -> tuple[int, ...]:
        total = -(-self._computed[name] // self._page_tokens)
        return tuple(int(page) for page in groups[0][:total])

    def _wire_name(self, request: Any) -> str:
        return name_of(params_of(request).get("transfer_id")) or str(request.request_id)

    def _remote(self, request: Any) -> Remote | None:
        try:
            remote = remote_of(params_of(request), request.request_id)
        except ValueError as error:
            log.warning("%s", error)
            return None
        if remote is None:
            log.warning(
                "request '%s': kv_transfer_params name no prefiller: %s",
                request.request_id,
                told(request.kv_transfer_params),
            )
        return remote
