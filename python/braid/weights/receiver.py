"""A worker's rank: gets a version, compares checksums, and serves it when all workers have it."""

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

from braid.closing import Closing
from braid.engine import Engine, values
from braid.errors import Cancelled, Error, InvalidArgument, Timeout
from braid.weights.arrival import LOOK_S, Arrival, Joined
from braid.weights.holdings import Buffers, Holdings, Parameter, check_target, host_bytes
from braid.weights.landing import beside, copy_over
from braid.weights.plan import Route, Table, itemsize
from braid.weights.station import Station, words_of
from braid.weights.sums import NAME, Summing, Text

Mode = Literal["two buffers", "in place"]


class _Left(Cancelled):
    """The trainers have left a version without an end: how it ended elsewhere is unknown."""


class Receiver(Station, Closing):
    """One worker's rank; a thread of it answers the trainers. A context manager.

    parameters  its parts; what a version brings lies there once it is served
    mode        "two buffers": a version lands beside the old one, which is served until all
                workers have the new one; then it is copied over box by box, and memory that is no
                parameter's stays as it is. It takes as much memory again as the arrays span, with
                the gaps of their strides. "in place": a version lands where it is served, between
                on_pause and on_resume; after a failure nothing is served until the next version is
                whole
    on_pause    called before anything that is served changes: in place before a version lands, with
                two buffers when all of it has landed here. Then on_resume(version) says that it is
                served, or on_failure(why) that it is not. Between on_pause and either of them the
                arrays may change, and must not be read. All are called on the receiver's thread
    patience    seconds for a version, from `go` on; the next `go`, renew() and join() end it sooner

    InvalidArgument for an array that is read-only, or several elements of which are one in memory.
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
        self._parameters = [
            values.of_kind(each, Parameter, "receiver: parameters")
            for each in values.several(parameters, "receiver: parameters")
        ]
        for parameter in self._parameters:
            check_target(parameter)
        self._is_in_place = mode == "in place"
        self._on_pause, self._on_resume, self._on_failure = on_pause, on_resume, on_failure
        self._patience = values.seconds(patience, f"{self.what}: patience")
        self._buffers = Buffers()
        self._landing = self._parameters if self._is_in_place else beside(self._parameters)
        """The same parameters where versions land."""
        self._changed = threading.Condition()
        self._version: int | None = None
        self._is_torn = False
        self._is_over = False
        self._why = ""
        self._joined: Joined | None = None
        """What the last join() has made; None: after renew(), or never joined."""
        self._under = Joined(0, [], [], {})
        """What the thread works with. It alone changes it."""
        self._summing = Summing()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._open()

    # --- what the user calls ---

    @property
    def version(self) -> int | None:
        """The version that is served; None: none yet, or the arrays are torn or being copied over.
        A reader of the arrays has read one version if this is the same before and after, and not
        None.
        """
        with self._changed:
            return None if self._is_torn else self._version

    @property
    def trouble(self) -> str:
        """Why the last version is not served, or what a callback raised; empty: all is well."""
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
        """Makes the plan from what all ranks have told, and answers the trainers from now on. A
        version of another plan that is under way fails, unless it is committed: then it is served.
        """
        table = self._plan(told)
        routes: dict[int, list[tuple[Route, Text]]] = {}
        for route in table.to_worker(self.rank):
            piece = self._buffers.pieces[route.target_piece]
            data = host_bytes(self._buffers.arrays[piece.buffer])
            text = Text.of(data, table.runs(route), itemsize(piece.dtype), is_source=False)
            routes.setdefault(route.source, []).append((route, text))
        if self._joined is None or self._joined.plan != self._plan_hash:
            self._joined = Joined(self._plan_hash, self.trainers, self._buffers.pieces, routes)
        if self._thread is None:
            name = f"braid.weights of {self.engine.name}"
            self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
            self._thread.start()
        return table

    def renew(self) -> bytes:
        """Before another join(): takes back what trainers were told, so that nothing of theirs can
        land any more, and describes this rank anew. A version that is under way fails, and nobody
        is answered until join().
        """
        self._joined = None
        self._buffers.close(self.engine)
        self._open()
        return self.describe()

    def wait(self, version: int, timeout: float = 60.0) -> None:
        """Returns when `version` or a later one is served. Timeout says what went wrong; Cancelled
        means that none will be served, since the receiver or its engine was closed.
        """
        limit = min(values.seconds(timeout, f"{self.what}: wait"), threading.TIMEOUT_MAX)
        with self._changed:
            self._changed.wait_for(lambda: self._is_over or self._serves(version), limit)
            if self._serves(version):
                return
            found = f"{self._version} is; {self._why or 'nothing was said'}"
            if self._is_over:
                raise Cancelled(f"{self.what}: it was closed, and version {version} is not served; "
                                f"{found}")  # fmt: skip
            raise Timeout(
                f"{self.what}: version {version} is not served after {timeout} s; {found}"
            )

    def _serves(self, version: int) -> bool:
        return not self._is_torn and self._version is not None and self._version >= version

    def close(self) -> None:
        self._closing.set()
        if self._thread is not None:
            self._thread.join(10)
        self._end_waits()
        self._hear_out()
        self._buffers.close(self.engine)
        self._summing.close()

    # --- a version ---

    def _open(self) -> None:
        self._buffers = Buffers.register(self.engine, self._landing)

    def _serve(self) -> None:
        try:
            self._serve_all()
        finally:
            self._end_waits()

    def _end_waits(self) -> None:
        """No version comes any more."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def _serve_all(self) -> None:
        while not self._closing.is_set() and not self.engine.closed:
            joined = self._joined
            if joined is None:
                self._closing.wait(LOOK_S)
                continue
            self._under = joined
            try:
                found = self._letter(0.1)
            except Error:
                return
            if found is not None and found[0]["kind"] == "go" and joined is self._joined:
                self._run(found[0])

    def _plan_name(self) -> str:
        return f"{self._under.plan:x}"

    def _tell(self, trainer: int, head: dict[str, Any]) -> None:
        """Says it to a trainer of the plan that the thread works with."""
        self._say(self._under.trainers[trainer], head)

    def _run(self, head: dict[str, Any]) -> None:
        version = head.get("version")
        try:
            if type(version) is not int or (self._version is not None and version <= self._version):
                raise InvalidArgument(f"version {version!r} after {self._version}")
            self._receive(version, self._knows(head.get("sums")))
        except Exception as error:  # on_pause's, too: this thread serves the next version
            self._fail(version, error)

    def _knows(self, sums: object) -> bool:
        """Whether checksums come; InvalidArgument for those of some other braid."""
        if sums not in ("", NAME):
            raise InvalidArgument(f"{self.what}: asked for checksums {sums!r}, knows '{NAME}'")
        return sums == NAME

    def _receive(self, version: int, has_sums: bool) -> None:
        until = time.monotonic() + self._patience
        if self._is_in_place:
            self._on_pause()
            self._tear()
        for rank in self._under.routes:
            self._tell(rank, {"kind": "ready", "version": version})
        summing = self._summing if has_sums else None
        arrival = Arrival(self.what, self.engine, self._under, version, summing)
        arrival.run(lambda lacks: self._heed(version, until, lacks))
        if not self._is_in_place:
            self._on_pause()  # what it raises ends the version for all: behind `have` it could not
        self._tell(0, {"kind": "have", "version": version})
        self._await_commit(version, until)
        self._apply(version)
        with contextlib.suppress(Error):  # it is served: that it was not said is the leader's error
            self._tell(0, {"kind": "applied", "version": version})

    def _await_commit(self, version: int, until: float) -> None:
        """Without an answer it is unknown whether other workers serve the version, so nothing is
        served here until the next one.
        """
        try:
            while self._next(version, until, "'commit' of trainer 0")[0]["kind"] != "commit":
                pass
        except (Timeout, _Left):
            self._tear()
            raise

    def _tear(self) -> None:
        """Nothing is served from here on, until a version is whole."""
        with self._changed:
            self._is_torn = True

    def _next(self, version: int, until: float, wanted: str) -> tuple[dict[str, Any], bytes]:
        while True:
            found = self._look(version, until, 0.2, lambda: wanted)
            if found is not None:
                return found

    def _heed(self, version: int, until: float, wanted: Callable[[], str]) -> None:
        """Takes the letters that are here; raises if the version has failed."""
        while self._look(version, until, 0.0, wanted) is not None:
            pass

    def _look(
        self, version: int, until: float, wait: float, wanted: Callable[[], str]
    ) -> tuple[dict[str, Any], bytes] | None:
        """The next letter of the version, if one comes within `wait`. A `go` of a later version is
        kept: it says that the trainers have given this one up.
        """
        if self._closing.is_set():
            raise Cancelled(f"{self.what} closed")
        if self._joined is not self._under:
            raise _Left(f"version {version}: {self.what} joins anew")
        left = until - time.monotonic()
        if left <= 0:
            raise Timeout(f"version {version}: {self.what} has waited in vain for {wanted()}")
        found = self._letter(min(left, wait))
        if found is None:
            return None
        kind, of = found[0]["kind"], found[0].get("version")
        if kind == "go" and type(of) is int and of > version:
            self._early.appendleft(found)
            raise _Left(f"version {version}: trainer 0 has gone on to version {of}")
        if of != version:
            return None
        if kind == "abort":
            why = str(found[0].get("why")).removeprefix(f"version {version}: ")
            raise Cancelled(f"version {version}: {why}")
        return found

    def _apply(self, version: int) -> None:
        if not self._is_in_place:
            self._tear()  # while it is copied, and for good where a copy breaks off
            copy_over(self._parameters, self._landing)
        with self._changed:
            self._version, self._is_torn, self._why = version, False, ""
            self._changed.notify_all()
        try:
            self._on_resume(version)
        except Exception as error:  # the version is whole, and all others serve it
            self._note(f"version {version} is served; on_resume raised {error!r}")

    def _fail(self, version: Any, error: Exception) -> None:  # noqa: ANN401
        """Nothing of the version is served, here or elsewhere."""
        why = words_of(error)
        self._note(why)
        head = {"kind": "bad", "version": version, "why": f"{self.what}: {why}"}
        with contextlib.suppress(Error):
            self._tell(0, head)
        try:
            self._on_failure(why)
        except Exception as raised:
            self._note(f"{why}; on_failure raised {raised!r}")

    def _note(self, why: str) -> None:
        with self._changed:
            self._why = why
            self._changed.notify_all()
