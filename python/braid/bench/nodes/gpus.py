"""On GPUs of several nodes: NCCL whole beside the drop-in, in the same processes, on the same
communicator, sample by sample in turn.

Every rank runs the same code; rank 0 alone prints and writes. Bytes are compared before anything is
timed, and once more after the last sample.
"""

import ctypes
import dataclasses
import os
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import torch

from braid.bench import facts, gpu_table
from braid.bench.machine import make_record
from braid.bench.nodes import library
from braid.bench.nodes.cpus import node_name
from braid.bench.nodes.store_crew import StoreCrew
from braid.bench.pattern import Data
from braid.bench.verdict import wrong_bytes
from braid.cases.gpu import GpuCase
from braid.cases.operations import busbw_factor
from braid.errors import InvalidArgument
from braid.record.gpu import GpuRecord, GpuResult, make_run
from braid.record.ranks import of_samples
from braid.terminal.console import console
from braid.terminal.reporter import Reporter

OPS = ("all_gather", "reduce_scatter", "all_reduce")
_SAMPLE_US = 2000.0
_MOST_CALLS, _LEAST_SAMPLES = 50, 5


@dataclass(frozen=True)
class Asked:
    """What the command line asked for."""

    ops: list[str]
    sizes: list[int]
    """Of all ranks' blocks together, as nccl-tests counts."""
    dtype: str
    samples: int
    time_budget_s: float
    json_path: Path | None
    commit: str = ""
    quiet: bool = False


class Contestant:
    """One library's calls of a case, on buffers that both share."""

    def __init__(self, name: str, calls: library.Call) -> None:
        self.name = name
        self.call = calls
        self.samples_us: list[float] = []
        self.wrong = 0


class Session:
    """One run on this rank."""

    def __init__(self, asked: Asked, crew: StoreCrew, reporter: Reporter) -> None:
        self._asked, self._crew, self._reporter = asked, crew, reporter
        self._stream = torch.cuda.Stream()
        self._own = library.drop_in()
        self._nccl = self._join()
        self._real = library.real(self._own)
        self._data = Data(asked.dtype, crew.rank, crew.size, torch.device("cuda"))
        self.results: list[GpuResult] = []

    def _join(self) -> ctypes.c_void_p:
        crew = self._crew
        made = library.fresh_id(self._own).hex() if crew.rank == 0 else ""
        unique = bytes.fromhex(crew.exchange(made)[0])
        return library.make_comm(self._own, unique, crew.size, crew.rank)

    def run(self) -> None:
        """Every operation at every size."""
        asked = self._asked
        cases = [self._case(op, size) for op in asked.ops for size in asked.sizes]
        self._reporter.start(len(cases))
        end_s = monotonic() + asked.time_budget_s
        for number, case in enumerate(cases):
            share_s = max(end_s - monotonic(), 0.0) / (len(cases) - number)
            self.results.append(self._measure(case, share_s))
            self._reporter.case_done()

    def _case(self, op: str, total_bytes: int) -> GpuCase:
        own = total_bytes // (1 if op == "all_reduce" else self._crew.size)
        return GpuCase.of(op, own, self._asked.dtype, self._crew.size)

    def _measure(self, case: GpuCase, budget_s: float) -> GpuResult:
        self._reporter.say(case.name, "checking every byte")
        kind: torch.dtype = getattr(torch, case.dtype)
        send = torch.empty(case.send_count, dtype=kind, device="cuda")
        out = torch.empty(case.out_count, dtype=kind, device="cuda")
        self._data.fill(send, self._crew.rank)
        racers = [
            Contestant(name, self._call_of(which, case, send, out))
            for name, which in (("braid", self._own), ("nccl", self._real))
        ]
        taken = library.counts(self._own)[0]
        call_us = [self._check(racer, case, out) for racer in racers]
        taken_here = sum(library.counts(self._own)[0]) - sum(taken)
        calls = int(min(max(_SAMPLE_US / max(min(call_us), 1.0), 1), _MOST_CALLS))
        paid = int(budget_s * 1e6 / max(sum(call_us) * calls, 1.0))
        calls, samples = self._crew.agree(
            calls, min(max(paid, _LEAST_SAMPLES), self._asked.samples)
        )
        self._reporter.expect(samples)
        for number in range(samples):
            for k in range(len(racers)):
                racer = racers[(number + k) % len(racers)]
                racer.samples_us.append(self._sample(racer, calls))
            self._reporter.step(case.name, f"sample {number + 1} of {samples}")
        for racer in racers:
            self._check(racer, case, out)
        return GpuResult(
            op=case.op,
            bytes=case.own_bytes,
            total_bytes=case.total_bytes,
            dtype=case.dtype,
            mode="eager",
            calls_per_sample=calls,
            host_share=None,
            runs=[self._run(racer, case) for racer in racers],
            absent={},
            path="in stages" if taken_here else "handed on",
        )

    def _call_of(
        self,
        which: Any,  # noqa: ANN401
        case: GpuCase,
        send: torch.Tensor,
        out: torch.Tensor,
    ) -> library.Call:
        count = case.out_count if case.op == "reduce_scatter" else case.send_count
        stream = self._stream.cuda_stream
        where = send.data_ptr(), out.data_ptr(), stream
        return library.Call(which, self._nccl, case.op, case.dtype, count, *where)

    def _check(self, racer: Contestant, case: GpuCase, out: torch.Tensor) -> float:
        """A call on a soiled result, its wrong bytes of all ranks, and its us: the slowest rank's.
        The first one of an operation may make rails, or race.
        """
        for _ in range(2):
            self._data.soil(out)
            torch.cuda.synchronize()
            self._crew.barrier()
            begin = monotonic()
            racer.call()
            self._stream.synchronize()
            took_us = (monotonic() - begin) * 1e6
            racer.wrong += self._crew.total(self._data.wrong_bytes(case, out))
        return self._crew.slowest([took_us])[0]

    def _sample(self, racer: Contestant, calls: int) -> float:
        """Mean us of a call on this rank, behind one in which the ranks meet."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._crew.barrier()
        racer.call()
        begin.record(self._stream)
        for _ in range(calls):
            racer.call()
        end.record(self._stream)
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1e3 / calls

    def _run(self, racer: Contestant, case: GpuCase) -> Any:  # noqa: ANN401
        rows = self._crew.rows(racer.samples_us)
        slowest = [max(times) for times in zip(*rows, strict=True)]

        def busbw(us: float) -> float:
            return case.total_bytes / us / 1e3 * busbw_factor(case.op, case.ranks)

        return make_run(
            racer.name, racer.name, slowest, busbw, racer.wrong, of_samples(rows), bursts=2
        )

    def close(self) -> None:
        """The communicator ends."""
        torch.cuda.synchronize()
        self._own.ncclCommDestroy(self._nccl)


def _record(asked: Asked, ranks: int, results: list[GpuResult], nodes: int) -> GpuRecord:
    made = make_record(ranks, asked.commit, {}, results, [], {}, "")
    return dataclasses.replace(made, host=facts.host(nodes))


def run_rank(asked: Asked) -> int:
    """The whole benchmark on this rank. The exit code: 1 when one byte was wrong anywhere."""
    library.drop_in()
    if os.environ.get("BRAID_NCCL_NODES", "off") == "off":
        raise InvalidArgument(f"bench nodes: BRAID_NCCL_NODES is off; {library.HOW}")
    with Reporter.for_this_rank() as reporter:
        crew = StoreCrew()
        torch.cuda.set_device(crew.local_rank % torch.cuda.device_count())
        if (nodes := len(set(crew.exchange(node_name())))) < 2:
            raise InvalidArgument(f"bench nodes: all {crew.size} ranks are on {nodes} node")
        session = Session(asked, crew, reporter)
        session.run()
        record = _record(asked, crew.size, session.results, nodes)
        session.close()
        crew.close()
    if crew.rank == 0:
        _publish(asked, record)
    return 1 if wrong_bytes(record.results) else 0


def _publish(asked: Asked, record: GpuRecord) -> None:
    out = console(asked.json_path)
    if not asked.quiet:
        gpu_table.show(record, out)
    if asked.json_path:
        record.save(asked.json_path)
        out.print(f"record  {asked.json_path}")
