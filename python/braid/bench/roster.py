"""Who takes part in a run. A library or a setting that is not there costs one line, not the run."""

from collections.abc import Callable
from typing import TypeVar

import torch

import braid
from braid.bench import mscclpp, nccl, symmetric
from braid.bench.braid_contestant import Braid, plain_shelf, registered_shelf
from braid.bench.contestant import BASELINES, Contestant
from braid.bench.crew import Crew
from braid.bench.deadline import Deadlines

T = TypeVar("T")

OPEN_S = 90.0
"""What making one communicator may take."""


class Roster:
    """The contestants of a run, most important first, and who is missing. `alone`: comms that are
    held to a share of the host link.
    """

    def __init__(
        self,
        crew: Crew,
        comm: braid.Comm,
        alone: dict[str, tuple[braid.Comm, float]],
        device: torch.device,
        deadlines: Deadlines,
    ) -> None:
        self.contestants: list[Contestant] = []
        self.missing: dict[str, str] = {}
        self.settings: dict[str, str] = {}
        self._crew, self._device, self._deadlines = crew, device, deadlines
        self._send = plain_shelf(device)
        self._plain = plain_shelf(device)
        self._registered = [registered_shelf(comm, device)]
        self._windows: nccl.Windows | None = None
        self._mscclpp: mscclpp.Library | None = None
        self._add(Braid("braid", "braid", comm, self._send, self._registered[0]))
        self._unregistered = Braid(
            "braid unregistered", "unregistered", comm, self._send, self._plain
        )
        self._alone = alone

    def open(self, groups: set[str], timeout_s: float, mscclpp_path: str = "") -> None:
        """Adds the contestants of these groups. All ranks must call it."""
        has_nccl = bool(groups & set(BASELINES)) and self._works(
            "nccl", lambda: nccl.join(self._crew, timeout_s)
        )
        if has_nccl and "nccl" in groups:
            self._add(nccl.Nccl("nccl", "nccl", None, self._send, self._plain))
        for name, (comm, share) in self._alone.items():
            self._registered.append(registered_shelf(comm, self._device))
            self._add(Braid(name, "links", comm, self._send, self._registered[-1], share))
        if "unregistered" in groups:
            self._add(self._unregistered)
        if has_nccl and "nccl-best" in groups:
            self._open_nccl_best(timeout_s)
        if has_nccl and "symm" in groups:  # it needs torch's process group
            shelves = self._attempt("symm", lambda: symmetric.symmetric_shelves(self._device))
            if shelves:
                self.contestants += symmetric.all_kinds(*shelves, self._send, self._plain)
        if mscclpp_path:
            self._open_mscclpp(mscclpp_path)

    def _open_mscclpp(self, path: str) -> None:
        opened = self._attempt("mscclpp", lambda: mscclpp.open_library(path))
        if opened and self._works("mscclpp", lambda: opened.join(self._crew)):
            self._mscclpp = opened
            self.settings["mscclpp"] = mscclpp.words_for(path, opened)
            send, out = (mscclpp.lasting_shelf(self._device) for _ in range(2))
            self._add(mscclpp.Mscclpp(opened, send, out))

    def _open_nccl_best(self, timeout_s: float) -> None:
        name = "nccl 32 ctas"
        group = self._attempt(name, lambda: nccl.group_with(timeout_s, **nccl.min_ctas()))
        if group:
            self.settings[name] = "a communicator with config.min_ctas and max_ctas 32"
            self._add(nccl.Nccl(name, "nccl-best", group, self._send, self._plain))
        windowed = {
            "nccl symmetric": self._attempt("nccl symmetric", lambda: nccl.group_with(timeout_s)),
            "nccl zero-cta": self._attempt(
                "nccl zero-cta", lambda: nccl.group_with(timeout_s, **nccl.zero_cta())
            ),
        }
        there = {name: group for name, group in windowed.items() if group}
        windows = self._attempt(
            "nccl windows", lambda: nccl.Windows(list(there.values()), self._device)
        )
        if not windows:
            return
        self._windows = windows
        for name, group in there.items():
            zero = name == "nccl zero-cta"
            policy = ", and config.cta_policy zero, as NCCL_CTA_POLICY=2" if zero else ""
            self.settings[name] = (
                "a communicator whose buffers come from ncclMemAlloc and are symmetric windows"
                f" (register_mem_pool(symm=True)){policy}"
            )
            self._add(
                nccl.Nccl(
                    name,
                    "nccl-best",
                    group,
                    windows.send,
                    windows.out,
                    zero=zero,
                    symmetric=not zero,
                )
            )

    def _add(self, contestant: Contestant) -> None:
        self.contestants.append(contestant)

    def _attempt(self, name: str, make: Callable[[], T]) -> T | None:
        made: T | None = None
        words = ""
        with self._deadlines.step(f"opening {name}", OPEN_S):
            try:
                made = make()
            except Exception as error:
                words = f"{type(error).__name__}: {error}"
            why = self._crew.first_words(words)
        if why:
            self.missing[name] = why
            return None
        return made

    def _works(self, name: str, do: Callable[[], None]) -> bool:
        def done() -> bool:
            do()
            return True

        return bool(self._attempt(name, done))

    def close(self) -> None:
        """Gives memory and communicators back. Collective; no call is running."""
        with self._deadlines.step("closing", OPEN_S):
            torch.cuda.synchronize()
            self._crew.barrier()
            if self._windows:
                self._windows.drop()
            for shelf in self._registered:
                shelf.drop()
            if self._mscclpp:
                self._mscclpp.leave()
            nccl.leave()
