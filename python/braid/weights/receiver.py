"""A worker's rank: gets a version, compares checksums, and serves it when all workers have it."""

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, Self

import numpy as np

from braid.arrays import Array
from braid.engine import Engine
from braid.errors import Cancelled, Error, InvalidArgument, Timeout
from braid.weights.holdings import Buffers, Holdings, Parameter, as_bytes
from braid.weights.plan import Route, Runs, Table
from braid.weights.sender import checksum
from braid.weights.station import Station

Mode = Literal["two buffers", "in place"]


class Receiver(Station):
    """One worker's rank; a thread of it answers the trainers. A context manager.

    parameters  its parts; what a version brings lies there once it is served
    mode        "two buffers": versions land beside, and are copied over when all workers have them,
                so the old one is served until then. "in place": they land where they are served,
                between on_pause and on_resume; after a failure nothing is served until the next
                version is whole
    on_pause    called before anything changes, and on_resume(version) when the version is served;
                on_failure(why) when it is not. On the receiver's thread
    patience    seconds for a version, from `go` on
    """

    def __init__(
        self,
        engine: Engine,
        rank: int,
        parameters: Sequence[Parameter],
        *,
        mode: Mode = "two buffers",
        on_pause: Callable[[], object] = lambda: None,
        on_resume: Callable[[int], object] = lambda _: None,
        on_failure: Callable[[str], object] = lambda _: None,
        patience: float = 60.0,
    ) -> None:
        super().__init__(engine, "worker", rank)
        if mode not in ("two buffers", "in place"):
            raise InvalidArgument(f"receiver: mode: two buffers or in place, found {mode!r}")
        self._parameters = list(parameters)
        self._is_in_place = mode == "in place"
        self._on_pause, self._on_resume, self._on_failure = on_pause, on_resume, on_failure
        self._patience = patience
        self._buffers = Buffers()
        self._landing: dict[int, Array] = {}
        """By buffer: where versions land, with two buffers."""
        self._changed = threading.Condition()
        self._version: int | None = None
        self._is_torn = False
        self._why = ""
        self._routes: dict[int, list[tuple[Route, Runs]]] = {}
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._open()

    # --- what the user calls ---

    @property
    def version(self) -> int | None:
        """What is served; None: nothing yet, or the buffers are torn."""
        with self._changed:
            return None if self._is_torn else self._version

    @property
    def trouble(self) -> str:
        """Why the last version was not served; empty: it was."""
        with self._changed:
            return self._why

    def describe(self) -> bytes:
        """What all other ranks must be told before they join."""
        regions = [region.descriptor for region in self._buffers.regions]
        return Holdings(
            self.side, self.rank, self.engine.name, self.engine.address, regions,
            self._buffers.pieces,
        ).encode()  # fmt: skip

    def join(self, told: Sequence[bytes]) -> Table:
        """Makes the plan of what all ranks have told, and answers the trainers from now on."""
        table = self._plan(told)
        self._routes = {}
        for route in table.to_worker(self.rank):
            self._routes.setdefault(route.source, []).append((route, table.runs(route)))
        if self._thread is None:
            name = f"braid.weights of {self.engine.name}"
            self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
            self._thread.start()
        return table

    def renew(self) -> bytes:
        """Before another join(): takes back what trainers were told, so that nothing of theirs can
        land any more, and describes anew.
        """
        self._buffers.close()
        self._open()
        return self.describe()

    def wait(self, version: int, timeout: float = 60.0) -> None:
        """Returns when `version` or a later one is served; Timeout, with what went wrong."""
        with self._changed:
            ok = self._changed.wait_for(
                lambda: not self._is_torn and self._version is not None
                and self._version >= version,
                timeout,
            )  # fmt: skip
            if not ok:
                raise Timeout(f"{self.what}: version {version} is not served after {timeout} s; "
                              f"{self._version} is; {self._why or 'nothing was said'}")  # fmt: skip

    def close(self) -> None:
        self._closing.set()
        if self._thread is not None:
            self._thread.join(10)
        self._buffers.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- a version ---

    def _open(self) -> None:
        landing = self._parameters
        if not self._is_in_place:
            landing = [_beside(parameter, self._landing_of) for parameter in self._parameters]
        self._buffers = Buffers.register(self.engine, landing)

    def _landing_of(self, array: Array) -> Array:
        """Memory of an array's form, the same for all parameters of one array."""
        key = id(array)
        if key not in self._landing:
            made: Array = array.clone() if hasattr(array, "data_ptr") else array.copy()
            self._landing[key] = made
        return self._landing[key]

    def _serve(self) -> None:
        while not self._closing.is_set() and not self.engine.closed:
            try:
                found = self._letter(0.1)
            except Error:
                return
            if found is not None and found[0]["kind"] == "go":
                self._run(found[0])

    def _run(self, head: dict[str, Any]) -> None:
        version = head.get("version")
        try:
            if type(version) is not int or (self._version is not None and version <= self._version):
                raise InvalidArgument(f"version {version!r} after {self._version}")
            self._receive(version, bool(head.get("checks")))
        except Error as error:
            self._fail(version, error)

    def _receive(self, version: int, checks: bool) -> None:
        until = time.monotonic() + self._patience
        self._on_pause()
        if self._is_in_place:
            with self._changed:
                self._is_torn = True
        for rank in self._routes:
            self._say(self.trainers[rank], {"kind": "ready", "version": version})
        waiting = set(self._routes)
        while waiting:
            head, body = self._next(version, until, f"'landed' of trainers {sorted(waiting)}")
            rank = int(head.get("rank", -1))
            if head["kind"] == "landed" and rank in waiting:
                if checks:
                    self._compare(rank, np.frombuffer(body, "<u4"))
                waiting.discard(rank)
        self._say(self.trainers[0], {"kind": "have", "version": version})
        self._await_commit(version, until)
        self._apply(version)
        self._say(self.trainers[0], {"kind": "applied", "version": version})

    def _await_commit(self, version: int, until: float) -> None:
        """Without an answer nobody here knows whether others serve the version: nothing is served
        until the next one.
        """
        try:
            while self._next(version, until, "'commit' of trainer 0")[0]["kind"] != "commit":
                pass
        except Timeout:
            with self._changed:
                self._is_torn = True
            raise

    def _next(self, version: int, until: float, wanted: str) -> tuple[dict[str, Any], bytes]:
        while True:
            left = until - time.monotonic()
            found = self._letter(min(left, 0.2)) if left > 0 else None
            if self._closing.is_set():
                raise Cancelled(f"{self.what} closed")
            if left <= 0:
                raise Timeout(f"version {version}: {self.what} has waited in vain for {wanted}")
            if found is None or found[0].get("version") != version:
                continue
            if found[0]["kind"] == "abort":
                raise Cancelled(f"version {version}: {found[0].get('why')}")
            return found

    def _compare(self, rank: int, sums: Any) -> None:  # noqa: ANN401
        """Of every route: did what the trainer wrote lie here?"""
        routes = self._routes[rank]
        if len(sums) != len(routes):
            raise InvalidArgument(f"{self.what}: {len(routes)} routes from trainer {rank}, "
                                  f"{len(sums)} checksums")  # fmt: skip
        for (route, runs), expected in zip(routes, sums, strict=True):
            piece = self._buffers.pieces[route.target_piece]
            array = self._buffers.arrays[piece.buffer]
            found = checksum(array, runs, piece.dtype, is_source=False)
            if found != int(expected):
                raise InvalidArgument(
                    f"parameter '{piece.name}' from {route.start} on, {route.size}, of trainer "
                    f"{rank} at {self.what}: checksum {found:08x}, sent {int(expected):08x}"
                )

    def _apply(self, version: int) -> None:
        if not self._is_in_place:
            for parameter in self._parameters:
                landed = self._landing[id(parameter.array)]
                if hasattr(landed, "data_ptr"):
                    parameter.array.copy_(landed)
                else:
                    as_bytes(parameter.array)[:] = as_bytes(landed)
        with self._changed:
            self._version, self._is_torn, self._why = version, False, ""
            self._changed.notify_all()
        self._on_resume(version)

    def _fail(self, version: Any, error: Error) -> None:  # noqa: ANN401
        """Nothing of the version is served, here or elsewhere."""
        with self._changed:
            self._why = str(error)
            self._changed.notify_all()
        head = {"kind": "bad", "version": version, "why": f"{self.what}: {error}"}
        with contextlib.suppress(Error):
            self._say(self.trainers[0], head)
        self._on_failure(str(error))


def _beside(parameter: Parameter, landing_of: Callable[[Array], Array]) -> Parameter:
    """The same parameter in other memory."""
    return Parameter(
        parameter.name, landing_of(parameter.array), parameter.shape, parameter.boxes,
        parameter.start, parameter.strides, parameter.offset, parameter.size,
    )  # fmt: skip
