"""asyncio's side of a mailbox: tasks sleep until a message is here; cancelling one loses none."""

import asyncio
import threading
from collections.abc import Callable

from braid.engine.ticket import wake

Sleeper = tuple[asyncio.AbstractEventLoop, "asyncio.Future[None]"]


class Arrivals:
    """Wakes tasks, of any loop, when the next message is here, or when the engine closes.

    However many tasks come and go, the engine is asked once to tell of the next message.
    """

    def __init__(self, tell: Callable[[Callable[[object], None]], bool]) -> None:
        self._tell = tell
        self._mutex = threading.Lock()
        self._sleepers: set[Sleeper] = set()
        self._is_asked = False

    async def sleep(self) -> None:
        """Until something may be here. May return early."""
        loop = asyncio.get_running_loop()
        sleeper = (loop, loop.create_future())
        with self._mutex:
            self._sleepers.add(sleeper)
            must_ask, self._is_asked = not self._is_asked, True
        try:
            if must_ask and not self._tell(lambda _: self.wake_all()):
                self.wake_all()
            await sleeper[1]
        finally:
            with self._mutex:
                self._sleepers.discard(sleeper)

    def wake_all(self) -> None:
        with self._mutex:
            self._is_asked = False
            sleepers = list(self._sleepers)
        for loop, future in sleepers:
            wake(loop, future)
