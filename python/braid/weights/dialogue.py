"""What a trainer's rank says and hears for one version, until all workers serve it or none does.

    trainer 0 (leader)            every trainer                 workers
    go {version, sums} ------------------------------------->   makes room; in place: pauses
                                  <--------------------------   ready {version}
                                  for each part of a route:
                                  sums and writes it, then
                                  says its place and sum --->   sums what lies there, compares
    <-------------------------------------------------------    have {version}, or bad {why}
    commit {version} ------------>-------------------------->   serves it
    <-------------------------------------------------------    applied {version}
    served {version} ------------>

Until `commit` a worker with two buffers serves the old version. Where anything fails before, the
leader says `abort {version, why}` to all, and no worker has the new version. Once one worker was
told `commit` there is no way back: all others are told, too, and a worker that does not say
`applied` is named. Every rank finds by its own deadline that the leader is lost. A worker that has
said `have` by then serves nothing until the next version, since it cannot know what others do.
"""

import time
from collections.abc import Callable
from typing import Any

from braid.engine import Engine, Ticket
from braid.errors import Cancelled, Error, Exhausted, Timeout
from braid.weights.holdings import Holdings
from braid.weights.station import Station, lost
from braid.weights.sums import NAME

_AGAIN_S = 0.01


class Trainer(Station):
    """A trainer's rank: what it knows from one version to the next. Rank 0 leads."""

    def __init__(self, engine: Engine, rank: int) -> None:
        super().__init__(engine, "trainer", rank)
        self.committed: int | None = None
        """The last version that workers were told to serve, as far as this rank knows."""
        self.kept: list[tuple[dict[str, Any], bytes]] = []
        """Letters of versions that are not sent yet."""

    def _wait(self, rank: int, ticket: Ticket, until: float) -> None:
        """For a transfer to a worker, a little longer than its own timeout."""
        try:
            ticket.wait(max(0.01, until - time.monotonic()) + 5)
        except Error as error:
            raise lost(f"{self.what} writes to worker {rank}", error) from error


class Dialogue:
    """One version, at one trainer's rank. `until` is its deadline, in monotonic seconds."""

    def __init__(self, trainer: Trainer, version: int, until: float, *, has_sums: bool) -> None:
        self._trainer = trainer
        self._version = version
        self._until = until
        self._sums = NAME if has_sums else ""
        self._heard: dict[str, set[int]] = {"ready": set(), "have": set(), "applied": set()}
        self._is_served = False

    def run(self, targets: list[int], send_all: Callable[[int, float], None]) -> None:
        """Returns when all workers serve the version. send_all(version, until) writes what this
        rank has for `targets`, once these are ready.
        """
        everybody = range(len(self._trainer.workers))
        if self._trainer.rank == 0:
            self._go()
        self._await("ready", set(targets))
        send_all(self._version, self._until)
        if self._trainer.rank == 0:
            self._await("have", set(everybody))
            self._commit()
            self._await("applied", set(everybody))
            self._tell_trainers("served")
        else:
            self._await_leader()

    def abort(self, why: str) -> None:
        """The leader tells all that the version has failed. Where workers serve it already, it
        tells the trainers alone.
        """
        workers = [] if self._trainer.committed == self._version else self._trainer.workers
        for holdings in [*workers, *self._trainer.trainers[1:]]:
            self._try(holdings, {"kind": "abort", "version": self._version, "why": why})

    def complain(self, why: str) -> None:
        """Tells the leader that the version has failed here."""
        head = {"kind": "bad", "version": self._version, "why": f"{self._trainer.what}: {why}"}
        self._try(self._trainer.trainers[0], head)

    def _try(self, to: Holdings, head: dict[str, Any]) -> None:
        """Says it to a rank that may be lost."""
        try:
            self._trainer._say(to, head)
        except Error:
            return

    def _go(self) -> None:
        head = {"kind": "go", "version": self._version, "sums": self._sums}
        for rank, worker in enumerate(self._trainer.workers):
            self._trainer._wait(rank, self._trainer._say(worker, head), self._until)

    def _commit(self) -> None:
        """Tells every worker that can be told, once one was: one that was not does not say
        `applied`, and is named for that.
        """
        for worker in self._trainer.workers:
            try:
                self._say_in_time(worker, {"kind": "commit", "version": self._version})
            except Error:
                if self._trainer.committed != self._version:
                    raise
                continue
            if self._trainer.committed != self._version:
                self._trainer.committed = self._version
                self._tell_trainers("commit")

    def _say_in_time(self, to: Holdings, head: dict[str, Any]) -> None:
        """Says it as soon as the engine has room for one more transfer."""
        while True:
            try:
                self._trainer._say(to, head)
                return
            except Exhausted:
                if time.monotonic() > self._until:
                    raise
            time.sleep(_AGAIN_S)

    def _tell_trainers(self, kind: str) -> None:
        for trainer in self._trainer.trainers[1:]:
            self._try(trainer, {"kind": kind, "version": self._version})

    def _await(self, kind: str, ranks: set[int]) -> None:
        while not ranks <= self._heard[kind]:
            self._take(f"'{kind}' of workers {sorted(ranks - self._heard[kind])}")

    def _await_leader(self) -> None:
        while not self._is_served:
            is_committed = self._trainer.committed == self._version
            self._take(f"'{'served' if is_committed else 'commit'}' of trainer 0")

    def _next(self) -> tuple[dict[str, Any], bytes] | None:
        """The next letter of this version; None at the deadline. Letters of later versions are
        kept: a worker may be ready for the next one before the leader's last letter about this one
        is here, since letters of different peers come in any order.
        """
        kept = self._trainer.kept
        for found in [letter for letter in kept if letter[0].get("version") == self._version]:
            kept.remove(found)
            return found
        while (left := self._until - time.monotonic()) > 0:
            letter = self._trainer._letter(left)
            version = letter[0].get("version") if letter is not None else None
            if version == self._version:
                return letter
            if letter is not None and type(version) is int and version > self._version:
                kept.append(letter)
        return None

    def _take(self, wanted: str) -> None:
        """Takes the next letter, and raises where the version has failed. `wanted` is what this
        rank waits for, in words.
        """
        found = self._next()
        is_committed = self._trainer.committed == self._version
        what = f"version {self._version}{' is committed' if is_committed else ''}"
        if found is None:
            raise Timeout(f"{what}: {self._trainer.what} has waited in vain for {wanted}")
        head, _ = found
        if head["kind"] in ("bad", "abort"):
            raise Cancelled(f"{what}: {head.get('why')}")
        if head["kind"] == "commit":
            self._trainer.committed = self._version
        elif head["kind"] == "served":
            self._is_served = True
        elif head["kind"] in self._heard:
            self._heard[head["kind"]].add(int(head.get("rank", -1)))
