"""What rank 0 shows while it measures: bars with the time left on a terminal, plain lines
elsewhere.
"""

import sys
from typing import TYPE_CHECKING

from braid import launched
from braid.closing import Closing

if TYPE_CHECKING:
    from rich.progress import TaskID


class Reporter(Closing):
    """Shows nothing: what all ranks but 0 use, and the interface of the others."""

    @staticmethod
    def for_this_rank() -> "Reporter":
        """Bars, lines or nothing."""
        if launched.rank() != 0:
            return Reporter()
        return Bars() if sys.stderr.isatty() else Lines()

    def tuning(self, done: float, what: str) -> None:
        """The links are being measured."""

    def start(self, cases: int) -> None:
        """The cases follow."""

    def say(self, case: str, what: str) -> None:
        """A step of a case, by name, whose length is not known."""

    def expect(self, samples: int) -> None:
        """This case will have so many samples."""

    def step(self, case: str, what: str) -> None:
        """One sample is done."""

    def case_done(self) -> None:
        """One case is done."""

    def close(self) -> None:
        """Removes the bars."""


class Lines(Reporter):
    """A line per phase on standard error."""

    def __init__(self) -> None:
        self._tuned = 0.0
        self._cases = 0
        self._done = 0
        self._what = ""

    def tuning(self, done: float, what: str) -> None:
        """A line per quarter."""
        if done == 0.0 or done >= self._tuned + 0.25 or done >= 1.0 > self._tuned:
            self._tuned = done
            print(f"tuning {done:4.0%} {what}", file=sys.stderr, flush=True)  # noqa: T201

    def start(self, cases: int) -> None:
        """Remembers how many."""
        self._cases = cases

    def say(self, case: str, what: str) -> None:  # noqa: ARG002 - a line per case is enough
        """Remembers which case it is."""
        self._what = f"{case}: "

    def expect(self, samples: int) -> None:
        """Says that timing starts."""
        print(  # noqa: T201
            f"case {self._done + 1} of {self._cases}: {self._what}{samples} samples",
            file=sys.stderr,
            flush=True,
        )

    def case_done(self) -> None:
        """Counts."""
        self._done += 1


class Bars(Reporter):
    """One bar for tuning, then one for all cases, with the time left."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            Progress,
            TaskProgressColumn,
            TextColumn,
            TimeRemainingColumn,
        )

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(),
        )
        self._progress: Progress = Progress(*columns, console=Console(stderr=True), transient=True)
        self._progress.start()
        self._tuning: TaskID | None = None
        self._cases: TaskID | None = None
        self._share = 1.0  # of a case that one sample is

    def tuning(self, done: float, what: str) -> None:
        """Moves the first bar."""
        if self._tuning is None:
            self._tuning = self._progress.add_task("tuning", total=1.0)
        self._progress.update(self._tuning, completed=done, description=f"tuning: {what}")

    def start(self, cases: int) -> None:
        """The second bar counts cases."""
        if self._tuning is not None:
            self._progress.remove_task(self._tuning)
        self._cases = self._progress.add_task("measuring", total=float(cases))

    def say(self, case: str, what: str) -> None:
        """Beside the bar."""
        if self._cases is not None:
            self._progress.update(self._cases, description=f"{case}: {what}")

    def expect(self, samples: int) -> None:
        """Each sample moves the bar by its part of a case."""
        self._share = 1.0 / samples

    def step(self, case: str, what: str) -> None:
        """Moves the bar."""
        if self._cases is not None:
            self._progress.update(self._cases, advance=self._share, description=f"{case}: {what}")

    def close(self) -> None:
        """Removes the bars."""
        self._progress.stop()
