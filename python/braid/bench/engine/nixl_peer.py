"""One process with a NIXL agent, over UCX or over braid as NIXL's backend: speaks as peer.py does.
Run as a file by a Python that has `nixl`, which need not have braid: `PYTHON nixl_peer.py`.
"""

import json
import os
import select
from importlib import import_module
from time import perf_counter_ns, sleep
from typing import Any

import numpy as np

pattern: Any = import_module("pattern")  # beside this file
_MOST_S = 60.0


def _library() -> Any:  # noqa: ANN401 - it has no types here
    for name in ("nixl._api", "nixl_cu12._api", "nixl_cu13._api"):
        try:
            return import_module(name)
        except ImportError:
            continue
    raise ImportError("no nixl here")


class Peer:
    """The agent and its memory."""

    def __init__(self) -> None:
        self.library = _library()
        self.is_working = False
        self.lists: dict[int, tuple[Any, Any]] = {}

    def open(self, word: dict[str, Any]) -> dict[str, Any]:
        """Makes both."""
        config = self.library.nixl_agent_config(enable_prog_thread=False, backends=[])
        self.agent = self.library.nixl_agent(word["name"], config)
        self.agent.create_backend(word["backend"], word["settings"])
        self.must_poll = word["backend"] == "UCX"
        self.places = pattern.base(word["nbytes"])
        self.memory = np.zeros_like(self.places)
        self.address = int(self.memory.ctypes.data)
        self.agent.register_memory(
            self.agent.get_reg_descs([(self.address, self.memory.nbytes, 0, "")], "DRAM")
        )
        return {"address": self.agent.get_agent_metadata().hex(), "descriptor": self.address}

    def meet(self, word: dict[str, Any]) -> dict[str, Any]:
        """Takes the other one's address and memory."""
        self.other = self.agent.add_remote_agent(bytes.fromhex(word["address"]))
        self.other_address = int(word["descriptor"])
        return {}

    def fill(self, word: dict[str, Any]) -> dict[str, Any]:
        """As peer.py."""
        if word["number"] is None:
            self.memory[:] = 0
        else:
            np.bitwise_xor(self.places, pattern.key(word["number"]), out=self.memory)
        return {}

    def work(self, word: dict[str, Any]) -> dict[str, Any]:
        """From now on this process polls where it must: UCX moves only while it is polled."""
        del word
        self.is_working = self.must_poll
        return {}

    def rest(self, word: dict[str, Any]) -> dict[str, Any]:
        """It leaves its core to others."""
        del word
        self.is_working = False
        return {}

    def poll(self) -> None:
        """Once."""
        self.agent.get_new_notifs()

    def check(self, word: dict[str, Any]) -> dict[str, Any]:
        """As peer.py."""
        count = word["count"]
        wrong = pattern.wrong_bytes(
            self.memory, self.places, word["number"], word["page_bytes"],
            pattern.shuffled(count, pattern.SOURCE), pattern.shuffled(count, pattern.TARGET),
        )  # fmt: skip
        return {"wrong_bytes": wrong, "too_many": 0}

    def _prepared(self, page_bytes: int) -> tuple[Any, Any]:
        if page_bytes not in self.lists:
            count = self.memory.nbytes // page_bytes
            self.lists[page_bytes] = (
                self._list("NIXL_INIT_AGENT", self.address, page_bytes, count),
                self._list(self.other, self.other_address, page_bytes, count),
            )
        return self.lists[page_bytes]

    def _list(self, agent: str, address: int, page_bytes: int, count: int) -> Any:  # noqa: ANN401
        rows = np.zeros((count, 3), np.uint64)
        rows[:, 0] = address + np.arange(count, dtype=np.uint64) * np.uint64(page_bytes)
        rows[:, 1] = page_bytes
        return self.agent.prep_xfer_dlist(agent, self.agent.get_xfer_descs(rows, "DRAM"))

    def _transfer(
        self,
        page_bytes: int,
        our_ids: Any,  # noqa: ANN401
        their_ids: Any,  # noqa: ANN401
        operation: str = "WRITE",
    ) -> float:
        """us, from page numbers to the end, as a caller has it who has other pages each time."""
        ours, theirs = self._prepared(page_bytes)
        start = perf_counter_ns()
        handle = self.agent.make_prepped_xfer(operation, ours, our_ids, theirs, their_ids)
        state = self.agent.transfer(handle)
        while state == "PROC":
            state = self.agent.check_xfer_state(handle)
        took = (perf_counter_ns() - start) / 1e3
        if state != "DONE":
            raise RuntimeError(f"a transfer of NIXL ended as {state}")
        self.agent.release_xfer_handle(handle)
        return took

    def pages(self, word: dict[str, Any]) -> dict[str, Any]:
        """As peer.py."""
        count = word["count"]
        source_ids = pattern.shuffled(count, pattern.SOURCE).astype(np.int32)
        target_ids = pattern.shuffled(count, pattern.TARGET).astype(np.int32)
        return {"samples_us": [self._transfer(word["page_bytes"], source_ids, target_ids)
                               for _ in range(word["repeats"])]}  # fmt: skip

    def read(self, word: dict[str, Any]) -> dict[str, Any]:
        """pages() the other way round: the target's process fetches them."""
        count = word["count"]
        source_ids = pattern.shuffled(count, pattern.SOURCE).astype(np.int32)
        target_ids = pattern.shuffled(count, pattern.TARGET).astype(np.int32)
        return {"samples_us": [self._transfer(word["page_bytes"], target_ids, source_ids, "READ")
                               for _ in range(word["repeats"])]}  # fmt: skip

    def write(self, word: dict[str, Any]) -> dict[str, Any]:
        """As peer.py."""
        count, page_bytes = word["count"], word["page_bytes"]
        source_ids = pattern.shuffled(count, pattern.SOURCE).astype(np.int32)
        target_ids = pattern.shuffled(count, pattern.TARGET).astype(np.int32)
        times = []
        for _ in range(word["repeats"]):
            took = [self._transfer(page_bytes, source_ids[i : i + 1], target_ids[i : i + 1])
                    for i in range(count)]  # fmt: skip
            times.append(sum(took) / count)
        return {"samples_us": times}


def main() -> None:
    """Answers until its input ends; polls in between while it works."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the library writes its log there
    peer = Peer()
    text = b""
    idle = 0
    while True:
        if peer.is_working:
            for _ in range(16):
                peer.poll()
        ready, _, _ = select.select([0], [], [], 0 if peer.is_working else _MOST_S)
        if not ready:
            idle += 1
            if idle % 64 == 0:
                sleep(0)  # the source may need this core
            continue
        got = os.read(0, 1 << 16)
        if not got:
            return
        text += got
        while b"\n" in text:
            line, _, text = text.partition(b"\n")
            word = json.loads(line)
            try:
                answer = getattr(peer, word["do"])(word)
            except Exception as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            answers.write(json.dumps(answer) + "\n")
            answers.flush()


if __name__ == "__main__":
    main()
