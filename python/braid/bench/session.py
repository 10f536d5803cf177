"""`braid bench` on one GPU's rank: the loop over cases, and the record.

Every rank runs the same code; rank 0 alone prints and writes. The record is written after every
case, so that whatever ends the run keeps what was measured.
"""

import gc
from collections.abc import Callable
from time import monotonic

import torch

import braid
from braid import json_file, launched
from braid.bench import facts, gpu_table, own_gpu
from braid.bench.crew import CommCrew
from braid.bench.deadline import Deadlines
from braid.bench.interrupt import Interrupt, join
from braid.bench.machine import make_record
from braid.bench.match import Match
from braid.bench.pattern import Data
from braid.bench.repeats import same_bits
from braid.bench.request import Request
from braid.bench.roster import OPEN_S, Roster
from braid.bench.verdict import wrong_bytes
from braid.launch import free_port
from braid.record.gpu import GpuRecord, GpuResult, Repeats
from braid.terminal.console import console
from braid.terminal.reporter import Reporter

_MOST_SCRATCH_BYTES = 16 << 30


class Session:
    """One run on this rank."""

    def __init__(self, request: Request, reporter: Reporter, stop: Interrupt) -> None:
        self._request, self._reporter, self._stop = request, reporter, stop
        self.results: list[GpuResult] = []
        self.repeats: list[Repeats] = []
        self.blocks: dict[str, int] = {}
        self.stopped = ""
        self._skipped: dict[str, str] = {}
        self.record: GpuRecord | None = None
        """On rank 0, at the end."""

    def run(self, device: torch.device) -> None:
        """Measures everything that was asked for."""
        request = self._request
        deadlines = Deadlines(launched.rank())
        with deadlines.step("joining and tuning", OPEN_S):
            comm = join(progress=self._reporter.tuning, **request.options)
            crew = CommCrew(comm)
            own_gpu.check_apart(crew)
            self._warm_up(comm, device)
            alone = self._comms_alone(comm, crew, device) if "links" in request.groups else {}
        roster = Roster(crew, comm, alone, device, deadlines)
        roster.open(request.groups, request.step_timeout_s, request.mscclpp)
        self._say_who(comm, roster)
        data = Data(request.dtype, comm.rank, comm.size, device)
        match = Match(request, comm, crew, roster, data, deadlines, self._reporter, self._stop)
        self._skipped = match.skipped
        self._reporter.start(len(request.tasks))
        end_s = monotonic() + request.time_budget_s
        for i, task in enumerate(request.tasks):
            share_s = max(end_s - monotonic(), 0.0) / (len(request.tasks) - i)
            result = match.play(task, share_s)
            if result is not None:
                self.results.append(result)
                self._save(comm, roster)
            self._reporter.case_done()
            if crew.agree(int(self._stop.came))[0]:
                self.stopped = f"interrupted in case {i + 1} of {len(request.tasks)}"
                break
        if request.repeats and not self.stopped:
            with deadlines.step("comparing repeated sums", request.step_timeout_s):
                self.repeats.append(same_bits(comm, crew, device, request.repeats))
        self._save(comm, roster)
        if request.blocks_of and not self.stopped:
            words = "counting thread blocks with torch's profiler"
            with deadlines.step(words, request.step_timeout_s, exit_code=0):  # all else is done
                self._count_blocks(match)
            self._save(comm, roster)
        roster.close()
        with deadlines.step("leaving", OPEN_S):
            for each, _ in alone.values():
                each.close()
            comm.close()
        deadlines.close()
        self._show(comm.rank, roster)

    def _count_blocks(self, match: Match) -> None:
        for op in self._request.blocks_of:
            count = match.blocks(op, self._request.blocks_bytes)
            if count is not None:
                self.blocks[op] = count

    @staticmethod
    def _warm_up(comm: braid.Comm, device: torch.device) -> None:
        """The first GPU call makes the GPU's part of the comm and tunes it."""
        comm.all_reduce(torch.ones(1024, device=device))
        torch.cuda.synchronize()

    def _comms_alone(
        self, comm: braid.Comm, crew: CommCrew, device: torch.device
    ) -> dict[str, tuple[braid.Comm, float]]:
        """Comms whose share of the host link is forced; the first comm keeps what it tuned. The
        host link's has room for whole messages, and no kernel that takes another way.
        """
        largest = max(task.own_bytes for task in self._request.tasks if "links" in task.groups)
        scratch = min(4 * crew.size * largest, _MOST_SCRATCH_BYTES)
        room = {"gpu_scratch": str(scratch), "gpu_direct": "0"}
        made = {}
        for name, share, more in (("braid nvlink", 0.0, {}), ("braid host", 1.0, room)):
            port = crew.agree(free_port() if comm.rank == 0 else 0)[0]
            options = {**self._request.options, "store_port": str(port), "tune": "off", **more}
            held = join(progress=False, **options)
            self._warm_up(held, device)
            made[name] = held, share
        return made

    def _say_who(self, comm: braid.Comm, roster: Roster) -> None:
        if comm.rank != 0:
            return
        out = console(self._request.json_path)
        in_force = facts.variables()
        if not any(name.startswith("BRAID_") for name in in_force):
            out.print("in force: no BRAID_ variable")
        for name, value in in_force.items():
            out.print(f"in force: {name}={value}", soft_wrap=True)
        for name, why in roster.missing.items():
            out.print(f"without {name}: {why}", soft_wrap=True)

    def _save(self, comm: braid.Comm, roster: Roster) -> None:
        path = self._request.json_path
        if comm.rank == 0 and path and json_file.is_replaced(path):
            self._record(roster).save(path)

    def _record(self, roster: Roster) -> GpuRecord:
        return make_record(
            launched.size(),
            self._request.commit,
            of_runs(roster.settings, self.results),
            self.results,
            self.repeats,
            self.blocks,
            self.stopped,
        )

    def _show(self, rank: int, roster: Roster) -> None:
        if rank != 0:
            return
        out = console(self._request.json_path)
        self.record = made = self._record(roster)
        if not self._request.quiet:
            gpu_table.show(made, out, by_rank=self._request.by_rank)
        for words, why in self._skipped.items():
            out.print(f"without {words}: {why}", soft_wrap=True)
        path = self._request.json_path
        if path:
            if not json_file.is_replaced(path):
                made.save(path)
            out.print(f"record  {path}")
        if self._request.svg_path and self.results:
            from braid.bench import curves

            curves.save(made, self._request.svg_path)
            out.print(f"plot    {self._request.svg_path}")
        if self.stopped:
            out.print(f"stopped: {self.stopped}")


def of_runs(settings: dict[str, str], results: list[GpuResult]) -> dict[str, str]:
    """Those of contestants that have a time: one that failed in every case is told as absent."""
    there = {run.who for result in results for run in result.runs}
    return {name: words for name, words in settings.items() if name in there}


def run_rank(request: Request, report: Callable[[GpuRecord], None] | None = None) -> int:
    """The whole benchmark on this rank; rank 0 hands its record to `report`. 1 when one byte was
    wrong anywhere.
    """
    device = own_gpu.take()
    gc.collect()
    gc.freeze()  # every capture of a graph collects
    with Interrupt() as stop, Reporter.for_this_rank() as reporter:
        session = Session(request, reporter, stop)
        session.run(device)
    if report and session.record:
        report(session.record)
    different = sum(repeat.different for repeat in session.repeats)
    return 1 if wrong_bytes(session.results) or different else 0
