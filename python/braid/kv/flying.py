"""Transfers under way, of which one at a time is watched.

A callback of each would wake a thread of Python for each, which takes the interpreter from the one
that begins the others: that takes longer than to begin them does.
"""

from collections import deque
from collections.abc import Callable, Iterator

from braid.engine import Ticket
from braid.errors import Error

LONGEST_S = 600.0
"""Of one call for pages. What ends a load is its own deadline, and a long queue is no fault of its:
this is for one without a deadline, where no rail comes up again.
"""


class Flying:
    """False when nothing is under way. Whoever calls holds one lock for all calls."""

    def __init__(self) -> None:
        self._tickets: deque[Ticket] = deque()
        self._is_watched = False
        self._has_begun = False
        self.error: Error | None = None
        """What the first one ended with that did not end well, of those that were taken away."""

    def __bool__(self) -> bool:
        return bool(self._tickets)

    def __iter__(self) -> Iterator[Ticket]:
        return iter(tuple(self._tickets))

    def add(self, ticket: Ticket) -> None:
        self._tickets.append(ticket)

    def watch(self, ended: Callable[[], object]) -> None:
        """Takes away what has ended. If anything is under way then, ended() is called once, later:
        on the engine's thread of callbacks, when one of them has ended. It is to call landed().

        The oldest is watched first, so that the first end is seen soon, and then the latest.
        """
        self.take_away()
        while self._tickets and not self._is_watched:
            watched = self._tickets[-1 if self._has_begun else 0]
            if watched.then(lambda _: ended()):
                self._is_watched = self._has_begun = True
            else:
                self.take_away()

    def landed(self) -> None:
        """What was watched has ended."""
        self._is_watched = False
        self.take_away()

    def take_away(self) -> None:
        """What has ended, and notes how."""
        for ticket in self:
            if ticket.done():
                self._tickets.remove(ticket)
                self.error = self.error or ticket.error()
