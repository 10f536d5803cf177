"""One process with a NIXL agent and its memory: orders come in and answers go out over a pipe.

    python agent.py FD

An order is (name, arguments) of `Agent`. Its Python has NIXL's wheel and NumPy, no more.
"""

import sys
import time
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any

import numpy as np


def library() -> Any:
    for name in ("nixl_cu12._api", "nixl_cu13._api", "nixl._api"):
        try:
            return import_module(name)
        except ImportError:
            continue
    raise ImportError("no nixl here")


def pattern(nbytes: int, seed: int) -> Any:
    """Bytes that depend on their place and on the seed."""
    places = np.arange(nbytes, dtype=np.uint64) * np.uint64(2654435761) + np.uint64(seed * 97 + 1)
    return (places >> np.uint64(11)).astype(np.uint8)


class Agent:
    """The agent, blocks of memory, and transfers by number."""

    def open(self, name: str, settings: dict[str, str], backend: str = "BRAID") -> bytes:
        api = library()
        sync = api.nixl_thread_sync_t.NIXL_THREAD_SYNC_RW
        config = api.nixl_agent_config(enable_prog_thread=False, backends=[], sync_mode=sync)
        self.agent = api.nixl_agent(name, config)
        self.agent.create_backend(backend, settings)
        self.backend = backend
        self.blocks: list[Any] = []
        self.registered: list[Any] = []
        self.transfers: dict[int, Any] = {}
        self.notices: list[tuple[str, bytes]] = []
        return bytes(self.agent.get_agent_metadata())

    def facts(self) -> dict[str, Any]:
        return {
            "plugins": self.agent.get_plugin_list(),
            "kinds": self.agent.get_plugin_mem_types(self.backend),
            "settings": self.agent.get_plugin_params(self.backend),
            "backend_kinds": self.agent.get_backend_mem_types(self.backend),
            "backend_settings": self.agent.get_backend_params(self.backend),
        }

    def blocks_of(self, count: int, nbytes: int, seed: int | None) -> list[int]:
        """Makes and registers so many blocks; their addresses. No seed: zeroes."""
        first = len(self.blocks)
        for i in range(count):
            block = pattern(nbytes, seed + i) if seed is not None else np.zeros(nbytes, np.uint8)
            self.blocks.append(block)
        rows = [(int(b.ctypes.data), nbytes, 0, "") for b in self.blocks[first:]]
        self.registered.append(self.agent.register_memory(rows, "DRAM"))
        return [row[0] for row in rows]

    def forget_blocks(self, which: int) -> float:
        """Unregisters what one call of blocks_of() registered; how long it took, in seconds."""
        began = time.monotonic()
        self.agent.deregister_memory(self.registered[which])
        return time.monotonic() - began

    def fill(self, block: int, value: int) -> None:
        self.blocks[block][:] = value

    def bytes_of(self, block: int) -> bytes:
        return bytes(self.blocks[block])

    def metadata(self) -> bytes:
        return bytes(self.agent.get_agent_metadata())

    def meet(self, metadata: bytes) -> str:
        name = self.agent.add_remote_agent(metadata)
        return name.decode() if isinstance(name, bytes) else str(name)

    def connect(self, name: str) -> None:
        self.agent.make_connection(name)

    def leave(self, name: str) -> None:
        self.agent.remove_remote_agent(name)

    # --- transfers: places are rows of address, bytes ---

    def _descs(self, places: Any) -> Any:
        rows = np.zeros((len(places), 3), np.uint64)
        rows[:, :2] = places
        return self.agent.get_xfer_descs(rows, "DRAM")

    def begin(
        self,
        number: int,
        operation: str,
        peer: str,
        ours: Any,
        theirs: Any,
        note: bytes | None = None,
    ) -> str:
        words = {} if note is None else {"notif_msg": note}
        handle = self.agent.initialize_xfer(
            operation, self._descs(ours), self._descs(theirs), peer, **words
        )
        self.transfers[number] = handle
        return str(self.agent.transfer(handle))

    def again(self, number: int) -> str:
        return str(self.agent.transfer(self.transfers[number]))

    def wait(self, number: int, limit_s: float = 30) -> str:
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            state = str(self.agent.check_xfer_state(self.transfers[number]))
            if state != "PROC":
                return state
            time.sleep(0)
        return "PROC"

    def error_of(self, number: int, limit_s: float = 30) -> tuple[str, float]:
        """How a transfer that must fail ended, and after how long, in seconds."""
        began = time.monotonic()
        try:
            state = self.wait(number, limit_s)
        except Exception as error:
            state = type(error).__name__
        return state, time.monotonic() - began

    def release(self, number: int) -> float:
        began = time.monotonic()
        self.agent.release_xfer_handle(self.transfers.pop(number))
        return time.monotonic() - began

    def move(
        self, operation: str, peer: str, ours: Any, theirs: Any, note: bytes | None = None
    ) -> str:
        self.begin(-1, operation, peer, ours, theirs, note)
        state = self.wait(-1)
        self.release(-1)
        return state

    def prepared(
        self, operation: str, peer: str, ours: Any, theirs: Any, orders: Any, note: bytes
    ) -> list[str]:
        """Lists prepared once, a transfer for each pair of numbers; each posted twice."""
        here = self.agent.prep_xfer_dlist("NIXL_INIT_AGENT", self._descs(ours))
        there = self.agent.prep_xfer_dlist(peer, self._descs(theirs))
        out = []
        for our_numbers, their_numbers in orders:
            self.transfers[-2] = self.agent.make_prepped_xfer(
                operation, here, our_numbers, there, their_numbers, note
            )
            for _ in range(2):
                self.again(-2)
                out.append(self.wait(-2))
            self.release(-2)
        return out

    def many(self, peer: str, ours: Any, theirs: Any, count: int, depth: int) -> dict[str, int]:
        """So many small transfers, `depth` at a time, reads and writes in turn, a note with each
        tenth; how they ended."""
        ended: dict[str, int] = {}
        flying: list[Any] = []
        for i in range(count):
            at = i % len(ours)
            words = {"notif_msg": b"n%d" % i} if i % 10 == 0 else {}
            operation = "READ" if i % 3 == 0 else "WRITE"
            handle = self.agent.initialize_xfer(
                operation,
                self._descs(ours[at : at + 1]),
                self._descs(theirs[at : at + 1]),
                peer,
                **words,
            )
            self.agent.transfer(handle)
            flying.append(handle)
            if len(flying) == depth or i == count - 1:
                for one in flying:
                    while (state := str(self.agent.check_xfer_state(one))) == "PROC":
                        time.sleep(0)
                    ended[state] = ended.get(state, 0) + 1
                    self.agent.release_xfer_handle(one)
                flying = []
        return ended

    # --- notifications ---

    def say(self, peer: str, message: bytes) -> None:
        self.agent.send_notif(peer, message)

    def listen(self, count: int, limit_s: float = 20) -> list[tuple[str, bytes]]:
        """The next notifications: at least `count`, or those that came in time."""
        end = time.monotonic() + limit_s
        while len(self.notices) < count and time.monotonic() < end:
            for name, messages in self.agent.get_new_notifs().items():
                self.notices += [(name, bytes(message)) for message in messages]
        out, self.notices = self.notices, []
        return out

    def check_at_notice(
        self, block: int, expected: bytes, limit_s: float = 20
    ) -> tuple[int, bytes]:
        """How many bytes of a block are wrong at the moment in which a notification is here."""
        found = self.listen(1, limit_s)
        wrong = np.count_nonzero(self.blocks[block] != np.frombuffer(expected, np.uint8))
        return int(wrong), found[0][1] if found else b"(nothing came)"


def main() -> None:
    pipe = Connection(int(sys.argv[1]))
    agent = Agent()
    while True:
        try:
            name, arguments = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send((True, getattr(agent, name)(*arguments)))
        except Exception as error:
            pipe.send((False, f"{type(error).__name__}: {error}"))


if __name__ == "__main__":
    main()
