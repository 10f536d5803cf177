"""Something under way that ends once, well or not."""

import asyncio
import os
from collections.abc import Callable, Generator
from typing import TypeAlias

from braid import _braid
from braid.engine.values import FOREVER_NS, nanoseconds
from braid.errors import Error, InvalidArgument, Timeout

Callback: TypeAlias = Callable[[Error | None], object]
"""Called once with how it ended, on the engine's thread of callbacks: it may begin transfers, must
not wait for any, and holds up other callbacks while it runs.
"""


class Ticket:
    """A transfer, or counts that are expected. Wait for it in a thread, or `await` it in asyncio.

    When it has ended, well or not, no byte of the transfer is read or lands any more.
    """

    def __init__(self, core: _braid.engine.Ticket, cancel: Callable[[], None]) -> None:
        self._core = core
        self._cancel = cancel
        self._process = os.getpid()

    def wait(self, timeout: float | None = None) -> None:
        """Returns when it ended well and raises what it ended with.

        Timeout after `timeout` seconds ends nothing but the wait. Without one a transfer still has
        its own deadline; an expectation waits for as long as it takes. Ctrl-C ends the wait.
        """
        self._refuse_fork()
        if not self._core.wait(nanoseconds(timeout, f"{self}", FOREVER_NS)):
            raise Timeout(f"{self._core.what}: not done after a wait of {timeout} s")
        self._core.raise_if_failed()

    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return self._core.is_done()

    def then(self, callback: Callback) -> bool:
        """Calls callback(error or None) once it has ended, as Callback says. False when it has
        ended already: the callback is not called then.
        """
        self._refuse_fork()
        return self._core.then(callback)

    def cancel(self) -> None:
        """Takes it back, and does not wait: it ends as Cancelled when nothing of it can land any
        more, or as it would have when that is too late.
        """
        self._cancel()

    def error(self) -> Error | None:
        """What it ended with; None when it ended well or has not ended."""
        return self._core.error()

    def __await__(self) -> Generator[None, None, None]:
        return self._ended().__await__()

    async def _ended(self) -> None:
        self._refuse_fork()
        loop = asyncio.get_running_loop()
        ended = loop.create_future()
        if self._core.then(lambda _: wake(loop, ended)):
            await self._through_cancels(ended)
        self._core.raise_if_failed()

    async def _through_cancels(self, ended: "asyncio.Future[None]") -> None:
        """A task that is cancelled cancels the transfer, and ends when the transfer has."""
        interrupted: asyncio.CancelledError | None = None
        while not ended.done():
            try:
                await asyncio.shield(ended)
            except asyncio.CancelledError as error:
                interrupted = interrupted or error
                self.cancel()
        if interrupted is not None:
            raise interrupted

    def _refuse_fork(self) -> None:
        """Nothing ends in a forked child: the engine's threads are in its parent."""
        if self._process != os.getpid() and not self.done():
            raise InvalidArgument(
                f"{self._core.what}: begun in process {self._process}, found in its fork "
                f"{os.getpid()}"
            )

    def __repr__(self) -> str:
        state = "ended" if self.done() else "under way"
        return f"Ticket({self._core.what}, {state})"


def wake(loop: asyncio.AbstractEventLoop, future: "asyncio.Future[None]") -> None:
    """Sets a future of another thread's loop, which may be closed by now."""

    def settle() -> None:
        if not future.done():
            future.set_result(None)

    if not loop.is_closed():
        try:
            loop.call_soon_threadsafe(settle)
        except RuntimeError:  # closed just now: nobody waits there any more
            return
