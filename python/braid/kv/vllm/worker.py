"""A worker's side: its engine, its cache, and a prefiller and a decoder over both.

One engine for each role, since each owns its engine's messages. Whatever may wait (asking a door,
the answers of a prefiller's ranks) is done on a thread of its own; a step waits for nothing, but
for writes out of blocks that vLLM is about to take away.
"""

import queue
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import braid
from braid import kv
from braid.engine import Peer
from braid.errors import Error
from braid.kv.cache import LayerMemory, memory_of
from braid.kv.door import ask
from braid.kv.ending import log
from braid.kv.vllm.words import Fetch, Give, Remote, StepOrders

_SHUT_S = 2.0


class WorkerSide:
    """One for each worker process.

    settings: what kv_connector_extra_config says; layout: of this worker's rank.
    """

    def __init__(
        self, name: str, settings: dict[str, Any], tensors: list[Any], layout: kv.Layout
    ) -> None:
        options = dict(settings.get("engine", {}))
        silence = float(settings.get("kv_silence", 10.0))
        lease = float(settings.get("kv_lease_duration", 30.0))
        self._deadline = float(settings.get("kv_deadline", 120.0))
        self._patience = float(settings.get("kv_patience", 1.0))
        self._layers = layout.layers_here
        memory = [memory_of(t, layout, f"layer {n}") for n, t in enumerate(tensors)]
        device = memory[0].device
        self._is_on_host = device is None
        self._engines = [
            braid.Engine(f"{name} {role}", device=device, **options) for role in ("gives", "takes")
        ]
        self._caches = [kv.PagedCache(engine, memory, layout) for engine in self._engines]
        self.prefiller = kv.Prefiller(
            self._engines[0], self._caches[0], lease=lease, silence=silence
        )
        self.decoder = kv.Decoder(self._engines[1], self._caches[1], silence=silence)
        self._memory: list[LayerMemory] = memory
        self._mutex = threading.Lock()
        self._names: dict[str, str] = {}
        """Requests that are given away, as decoders name them."""
        self._sent: set[str] = set()
        self._finished: set[str] = set()
        """Of those, the ones that vLLM has finished: only they may be reported."""
        self._received: set[str] = set()
        self._bad_pages: set[int] = set()
        self._loads: dict[str, kv.Load] = {}
        self._coming: set[str] = set()
        """Requests that are fetched, from the order on."""
        self._cancelled: set[str] = set()
        """Of those."""
        self._prefills: dict[tuple[str, int], kv.Prefill] = {}
        self._shut: dict[tuple[str, int], tuple[float, Error]] = {}
        """Doors that nobody opened, and until when they are not asked again: errands wait for one
        another, and a host that is gone takes seconds for each.
        """
        self._bumps_left = 0
        self._errands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._errand_boy = threading.Thread(target=self._run_errands, daemon=True)
        self._errand_boy.start()

    @property
    def address(self) -> bytes:
        """Where decoders find this worker's pages."""
        return self._engines[0].address.data

    # --- a step ---

    def before_forward(self, orders: StepOrders) -> None:
        """What the forward pass will compute, and of which requests."""
        for name, give in orders.gives.items():
            self._give(name, give)
        for name, pages in orders.restarts.items():
            self._guarded(name, partial(self.prefiller.grow, self._names.get(name, name), pages))
        for name, pages in orders.grows.items():
            self._guarded(name, partial(self.prefiller.grow, self._names.get(name, name), pages))
        parts = [
            kv.Part(self._names[name], tokens)
            for name, tokens in orders.parts.items()
            if name in self._names and self.prefiller.knows(self._names[name])
        ]
        self._bumps_left = self._layers if parts else 0
        if parts:
            self.prefiller.declare(parts)

    def layer_done(self) -> None:
        """On the host a layer's pages are written when its call has returned."""
        if self._bumps_left and self._is_on_host:
            self._bumps_left -= 1
            self.prefiller.layer_done()

    def after_forward(self) -> None:
        """Whatever was declared is computed by now."""
        if self._bumps_left:
            if not self._is_on_host:
                import torch

                torch.cuda.current_stream().synchronize()
            self.prefiller.layer_done(self._bumps_left)
            self._bumps_left = 0

    def run(self, orders: StepOrders) -> None:
        """Begins and ends transfers; waits for nothing."""
        for name in orders.completes:
            self.prefiller.computed(self._names.get(name, name))
        for name in orders.dropped:
            if name in self._names:
                self.prefiller.cancel(self._names[name])
            else:  # it never came to a pass
                self._gone(name, None)
        with self._mutex:
            self._coming |= orders.fetches.keys()
        for name, fetch in orders.fetches.items():
            self._errands.put(partial(self._fetch, name, fetch))
        for remote in orders.renews.values():
            self._errands.put(partial(self._with_prefill, remote, self._renew))
        for remote in orders.lets_go.values():
            self._errands.put(partial(self._with_prefill, remote, self._let_go))
        for name in orders.cancels:
            self._cancel(name)

    def hold_back(self, orders: StepOrders) -> None:
        """Blocks of preempted requests are about to be written to: nothing reads them any more
        when this returns. What they held and was not sent is computed again, elsewhere. All other
        requests wait meanwhile: for `kv_patience` seconds, and who still reads then does without.
        """
        until = time.monotonic() + self._patience
        for name in orders.preempted:
            left = max(0.0, until - time.monotonic())
            self.prefiller.pause(self._names.get(name, name), self._deadline, patience=left)

    def results(self, finished: set[str]) -> tuple[set[str], set[str]]:
        """Requests whose pages have gone, and those whose pages have come, since the last call;
        `finished` are those that vLLM has finished since then.
        """
        with self._mutex:
            self._finished |= finished & (self._sent | self._names.keys())
            sent = self._sent & self._finished
            self._sent -= sent
            self._finished -= sent
            received, self._received = self._received, set()
        return sent, received

    def bad_pages(self) -> set[int]:
        """Pages that did not come, of requests that results() has named or will."""
        with self._mutex:
            bad, self._bad_pages = self._bad_pages, set()
        return bad

    def close(self) -> None:
        self._errands.put(None)
        self._errand_boy.join(5)
        self.decoder.close()
        self.prefiller.close()
        for cache, engine in zip(self._caches, self._engines, strict=True):
            cache.close()
            engine.close()

    # --- giving ---

    def _give(self, name: str, give: Give) -> None:
        self._names[name] = give.request
        try:
            handover = self.prefiller.begin(
                give.request,
                give.pages,
                give.tokens,
                is_computed=give.is_computed,
                was_computed_when_told=give.is_computed,  # the answer has their numbers, at the end
            )
        except Error as error:
            log.warning("%s", error)
            self._gone(name, error)
            return
        handover.then(partial(self._gone, name))

    def _gone(self, name: str, error: Error | None) -> None:
        """vLLM frees the blocks of a finished request that is named, and of no other."""
        if error is not None:
            log.warning("request '%s' was not handed over: %s", name, error)
        with self._mutex:
            self._names.pop(name, None)
            self._sent.add(name)

    def _guarded(self, name: str, call: Callable[[], None]) -> None:
        try:
            call()
        except Error as error:
            log.warning("request '%s': %s", name, error)
            self.prefiller.cancel(self._names.get(name, name), error)

    # --- taking ---

    def _fetch(self, name: str, fetch: Fetch) -> None:
        with self._mutex:
            if name in self._cancelled:
                self._cancelled.discard(name)
                self._coming.discard(name)
                self._received.add(name)
                return
        try:
            load = self._load(fetch)
        except Exception as error:
            if not isinstance(error, Error):  # else vLLM would wait for its blocks for ever
                log.exception("request '%s'", name)
            self._come(name, fetch, error)
            return
        with self._mutex:
            self._loads[name] = load
            is_cancelled = name in self._cancelled
        if is_cancelled:
            load.cancel()
        load.then(partial(self._come, name, fetch))

    def _load(self, fetch: Fetch) -> kv.Load:
        prefill = self._prefill(fetch.remote)
        if fetch.remote.pages is None:
            return self.decoder.want(
                fetch.remote.request,
                prefill,
                fetch.pages,
                fetch.tokens,
                first_page=fetch.first_page,
                timeout=self._deadline,
            )
        theirs = fetch.remote.pages
        request = fetch.remote.request
        return self.decoder.pull(request, prefill, theirs, fetch.pages, timeout=self._deadline)

    def _come(self, name: str, fetch: Fetch, error: Exception | None) -> None:
        if error is not None:
            log.warning("request '%s' was not loaded: %s", name, error)
        with self._mutex:
            self._loads.pop(name, None)
            self._coming.discard(name)
            self._cancelled.discard(name)
            if error is not None:
                self._bad_pages |= set(fetch.pages)
            self._received.add(name)

    def _cancel(self, name: str) -> None:
        with self._mutex:
            load = self._loads.get(name)
            if name in self._coming:
                self._cancelled.add(name)
        if load is not None:
            load.cancel()

    def _prefill(self, remote: Remote) -> kv.Prefill:
        """All ranks of the prefiller behind a door; asked for anew when one was lost."""
        place = remote.host, remote.port
        prefill = self._prefills.get(place)
        if prefill is None or prefill.error() is not None:
            prefill = self._prefills[place] = self.decoder.connect(self._ask(place))
        return prefill

    def _ask(self, place: tuple[str, int]) -> list[Peer]:
        until, error = self._shut.get(place, (0.0, None))
        if error is not None and time.monotonic() < until:
            raise error
        try:
            _, peers = ask(*place)
        except Error as error:
            self._shut[place] = time.monotonic() + _SHUT_S, error
            raise
        self._shut.pop(place, None)
        return peers

    def _renew(self, remote: Remote, prefill: kv.Prefill) -> None:
        self.decoder.renew(remote.request, prefill)

    def _let_go(self, remote: Remote, prefill: kv.Prefill) -> None:
        self.decoder.let_go(remote.request, prefill)

    def _with_prefill(self, remote: Remote, call: Callable[[Remote, kv.Prefill], None]) -> None:
        try:
            call(remote, self._prefill(remote))
        except Error as error:
            log.warning("request '%s': %s", remote.request, error)

    def _run_errands(self) -> None:
        while (errand := self._errands.get()) is not None:
            try:
                errand()
            except Exception:
                log.exception("an errand failed")
