"""Transfers under way, of which one at a time is watched.

A callback of each would wake a thread of Python for each, which takes the interpreter from the one
that begins the others: that takes longer than to begin them does.
"""

from collections import deque
from collections.abc import Callable, Iterator

from braid.engine import Ticket
from braid.errors import Error

LONGEST_S = 600.0
"""The timeout of one call for pages. A load ends by its own deadline, however long the queue of the
engine is. This one is for a load without a deadline when no rail comes up again.
"""


class Flying:
    """Transfers under way; False when there are none. All calls are made under one lock."""

    def __init__(self) -> None:
        self._tickets: deque[Ticket] = deque()
        self._is_watched = False
        self._has_begun = False
        self.error: Error | None = None
        """The first error of a transfer that was taken away."""

    def __bool__(self) -> bool:
        return bool(self._tickets)

    def __iter__(self) -> Iterator[Ticket]:
        return iter(tuple(self._tickets))

    def add(self, ticket: Ticket) -> None:
        self._tickets.append(ticket)

    def watch(self, ended: Callable[[], object]) -> None:
        """Takes away what has ended. If anything is still under way, ended() is called once, on the
        engine's thread of callbacks, when a transfer has ended. It must call landed().

        The oldest transfer is watched first, so that the first end is seen soon; then the latest.
        """
        self.take_away()
        while self._tickets and not self._is_watched:
            watched = self._tickets[-1 if self._has_begun else 0]
            if watched.then(lambda _: ended()):
                self._is_watched = self._has_begun = True
            else:
                self.take_away()

    def landed(self) -> None:
        """The transfer that was watched has ended."""
        self._is_watched = False
        self.take_away()

    def take_away(self) -> None:
        """Takes away the transfers that have ended, and notes the first error."""
        for ticket in self:
            if ticket.done():
                self._tickets.remove(ticket)
                self.error = self.error or ticket.error()
