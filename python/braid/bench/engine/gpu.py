"""Pages between two processes on one GPU, beside the best plain ways of the driver on the same GPU
in the same run; and between a GPU and the host, beside PCIe's rate. `python -m
braid.bench.engine.gpu --json FILE`. With `--gpus 0,1` pages from one GPU to another one, beside one
copy of as many bytes by the copy engine.

The plain ways are calls of one process, which need no other one to be told anything: a kernel that
copies pages (Triton), the driver's copies in one batch, and torch's index_select and index_copy_.
Everybody makes as many calls: one that is waited for before the next, or several at a time, as who
pipelines has them; and everybody is called once before he is timed, because a GPU takes a while to
change from one process to another.
"""

import argparse
import ctypes
import secrets
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter_ns
from typing import Any

try:
    import torch
except ModuleNotFoundError:
    raise ModuleNotFoundError(
        "braid.bench.engine.gpu needs PyTorch with CUDA: pip install torch"
    ) from None

from braid.bench.engine import pattern
from braid.bench.engine.contestants import Case, Contestant, Pair, introduce
from braid.bench.engine.gpu_peer import GPU, HOST, fill, wrong_words
from braid.bench.engine.jobs import race, ratios_of
from braid.bench.engine.player import Player
from braid.errors import Error
from braid.probe.effort import Effort
from braid.probe.job import Job, Tick
from braid.probe.publish import Output, Run, measure
from braid.record.probe import Series
from braid.sizes import format_size

_PAGES = (8 << 10, 64 << 10, 1 << 20)
_AT_A_TIME = 4
_MODULE = "braid.bench.engine.gpu_peer"


@dataclass(frozen=True)
class Plain:
    """A copy by one process: `make` gives what is timed, for memory of this many pages."""

    name: str
    source: torch.Tensor
    target: torch.Tensor
    make: Callable[["Plain", Case], Callable[[], None]]

    def check(self, case: Case, number: int) -> int:
        """As Pair."""
        fill(self.source, number)
        self.target.zero_()
        self._settle()
        self.make(self, case)()
        self._settle()
        source_ids, target_ids = _ids(case)
        found = self.target[: case.count * case.page_bytes // 8]
        return 8 * wrong_words(found, number, case.page_bytes, source_ids, target_ids)

    def samples_us(self, case: Case, repeats: int) -> list[float]:
        """Each from the call to the end of the copies, as the host sees it."""
        call, calls = self.make(self, case), _calls(case)
        call()
        self._settle()
        found = []
        for _ in range(repeats):
            start = perf_counter_ns()
            for _ in range(calls):
                call()
            self._settle()
            found.append((perf_counter_ns() - start) / 1e3 / calls)
        return found

    def _settle(self) -> None:
        """torch orders a copy between GPUs by the streams of either, so both are waited for."""
        for gpu in {each.device for each in (self.source, self.target) if each.is_cuda}:
            torch.cuda.synchronize(gpu)

    def close(self) -> None:
        """Nothing of it stays."""


def _calls(case: Case) -> int:
    """Under way at a time."""
    return _AT_A_TIME if case.kind == "flow" else 1


class Ours(Pair):
    """The two processes, measured as Plain is."""

    def check(self, case: Case, number: int) -> int:
        """Of one call; of a stream, of one for each that is under way."""
        kind = "pages" if case.kind == "flow" else case.kind
        return super().check(replace(case, kind=kind), number)

    def samples_us(self, case: Case, repeats: int) -> list[float]:
        """Without the first."""
        answer = self._source.ask(
            case.kind, 90, page_bytes=case.page_bytes, count=case.count, repeats=repeats + 1,
            calls=_calls(case), imm=None, at_once=case.at_once, layers=case.layers,
        )  # fmt: skip
        return [float(us) for us in answer["samples_us"][1:]]


def _ids(case: Case) -> tuple[pattern.Ids, pattern.Ids]:
    if case.kind == "straight":
        order = pattern.shuffled(case.count, 0)
        order.sort()
        return order, order
    return (
        pattern.shuffled(case.count, pattern.SOURCE),
        pattern.shuffled(case.count, pattern.TARGET),
    )


def _ids_on(case: Case, *devices: torch.device) -> list[torch.Tensor]:
    return [
        torch.from_numpy(ids.astype("int64")).to(device)
        for ids, device in zip(_ids(case), devices, strict=True)
    ]


def index_copy(plain: Plain, case: Case) -> Callable[[], None]:
    """torch's own: out of the source, into the target."""
    words = case.page_bytes // 8
    source_ids, target_ids = _ids_on(case, plain.source.device, plain.target.device)
    source, target = plain.source.view(-1, words), plain.target.view(-1, words)

    def call() -> None:
        gathered = source.index_select(0, source_ids).to(target.device, non_blocking=True)
        target.index_copy_(0, target_ids, gathered)

    return call


def triton_pages(plain: Plain, case: Case) -> Callable[[], None]:
    """One kernel, a block of threads for every 8 KiB."""
    from braid.bench.engine.page_kernel import BLOCK_WORDS, copy_pages

    words = case.page_bytes // 8
    on = plain.target.device
    source_ids, target_ids = _ids_on(case, on, on)
    grid = (case.count, max(words // BLOCK_WORDS, 1))

    def call() -> None:
        copy_pages[grid](
            plain.source, plain.target, source_ids, target_ids, words, BLOCK=BLOCK_WORDS
        )

    return call


class _Place(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Attributes(ctypes.Structure):
    _fields_ = (
        ("order", ctypes.c_int), ("source", _Place), ("target", _Place), ("flags", ctypes.c_uint),
    )  # fmt: skip


def batch(plain: Plain, case: Case) -> Callable[[], None]:
    """cuMemcpyBatchAsync: every page a copy of the driver's, in one call."""
    call = ctypes.CDLL("libcuda.so.1").cuMemcpyBatchAsync
    many, pointers = ctypes.c_size_t * case.count, ctypes.c_uint64 * case.count
    source_ids, target_ids = _ids(case)
    size = case.page_bytes
    sources = pointers(*(plain.source.data_ptr() + int(i) * size for i in source_ids))
    targets = pointers(*(plain.target.data_ptr() + int(i) * size for i in target_ids))
    sizes = many(*[size] * case.count)
    stream = torch.cuda.Stream()
    in_stream_order = _Attributes(order=1)
    first, failed = ctypes.c_size_t(0), ctypes.c_size_t(0)

    def run() -> None:
        code = call(targets, sources, sizes, ctypes.c_size_t(case.count),
                    ctypes.byref(in_stream_order), ctypes.byref(first), ctypes.c_size_t(1),
                    ctypes.byref(failed), ctypes.c_void_p(stream.cuda_stream))  # fmt: skip
        if code != 0:
            raise RuntimeError(f"cuMemcpyBatchAsync: error {code} at copy {failed.value}")

    return run


def whole(plain: Plain, case: Case) -> Callable[[], None]:
    """One copy of all of it: PCIe's rate where one side is pinned memory, the copy engine's between
    two GPUs.
    """
    words = case.count * case.page_bytes // 8

    def call() -> None:
        plain.target[:words].copy_(plain.source[:words], non_blocking=True)

    return call


class Straight(Plain):
    """The pages in order, which is what one copy can do."""

    def check(self, case: Case, number: int) -> int:
        """With the order that one copy has."""
        return super().check(Case("straight", case.page_bytes, case.count), number)


def engine(nbytes: int, host_nbytes: int, gpus: Sequence[int] = (0, 0)) -> Pair:
    """braid, two processes, each with memory of a GPU and on the host; which GPU is whose."""
    command = [sys.executable, "-m", _MODULE]
    source, target = Player("source", command), Player("target", command)
    introduce(
        source, target, [{"gpu": gpu} for gpu in gpus], nbytes=nbytes, host_nbytes=host_nbytes,
        token=secrets.token_hex(16), nics=[],
    )  # fmt: skip
    return Ours("braid", source, target)


def _memory(nbytes: int, device: str) -> torch.Tensor:
    return torch.zeros(nbytes // 8, dtype=torch.int64, device=device, pin_memory=device == HOST)


def _on(place: str, gpu: int) -> str:
    return f"{GPU}:{gpu}" if place == GPU else place


def _rivals(nbytes: int, source_on: str, target_on: str) -> list[Contestant]:
    """The first is the fastest."""
    source, target = _memory(nbytes, source_on), _memory(nbytes, target_on)
    if source_on == target_on:
        return [
            Plain("Triton kernel", source, target, triton_pages),
            Plain("cuMemcpyBatchAsync", source, target, batch),
            Plain("torch index_copy_", source, target, index_copy),
        ]
    if HOST not in (source_on, target_on):
        torch.cuda.set_device(target.device)  # whose kernels and streams are meant below
        for a, b in ((target, source), (source, target)):
            a[:1].copy_(b[:1])  # lets each GPU reach the other one's memory
        return [
            Straight("one copy", source, target, whole),
            Plain("Triton kernel", source, target, triton_pages),
            Plain("cuMemcpyBatchAsync", source, target, batch),
            Plain("torch, gathered and copied", source, target, index_copy),
        ]
    return [
        Straight("one pinned copy", source, target, whole),
        Plain("cuMemcpyBatchAsync, pinned", source, target, batch),
    ]


@dataclass
class _Field:
    """The two processes, started once, and the plain ways between the places at hand."""

    nbytes: int
    host_nbytes: int
    gpus: tuple[int, int] = (0, 0)
    ours: Pair | None = None
    way: tuple[str, str] = ("", "")
    rivals: list[Contestant] = field(default_factory=list)

    def enter(self, source_on: str, target_on: str) -> tuple[int, list[Contestant]]:
        """Bytes of both sides, and who is measured."""
        nbytes = self.nbytes if source_on == target_on else self.host_nbytes
        if self.ours is None:
            self.ours = engine(self.nbytes, self.host_nbytes, self.gpus)
        if self.way != (source_on, target_on):
            self.way, self.rivals = (source_on, target_on), []
            places = (_on(place, gpu) for place, gpu in zip(self.way, self.gpus, strict=True))
            self.rivals = _rivals(nbytes, *places)
            self.ours.choose(source_on, target_on)
        return nbytes, [self.ours, *self.rivals]

    def close(self) -> None:
        """Ends the processes."""
        if self.ours is not None:
            self.ours.close()


WAYS = {
    "GPU to the same GPU": (GPU, GPU),
    "host to GPU": (HOST, GPU),
    "GPU to host": (GPU, HOST),
}
BETWEEN = {"GPU to another GPU": (GPU, GPU)}
"""The ways of two GPUs."""


def _jobs(who: _Field) -> list[Job]:
    """One for each way and size, so that what was measured is kept when time runs out."""
    return [
        _job(kind, where, page_bytes, number, who)
        for where in _ways(who.gpus)
        for kind in ("pages", "flow")
        for number, page_bytes in enumerate(_PAGES, start=1)
    ]


def _ways(gpus: tuple[int, int]) -> dict[str, tuple[str, str]]:
    return WAYS if gpus[0] == gpus[1] else BETWEEN


def _job(kind: str, where: str, page_bytes: int, number: int, who: _Field) -> Job:
    what = where if kind == "pages" else f"{where}, {_AT_A_TIME} at a time"

    def run(effort: Effort, tick: Tick) -> list[Series]:
        nbytes, present = who.enter(*_ways(who.gpus)[where])
        if kind == "flow":  # what a plain program would do: the first, which is the fastest of them
            present = present[:2]
        case = Case(kind, page_bytes, min(nbytes // page_bytes, 1 << 17))
        group = f"pages {format_size(page_bytes)} {what}"
        return _race(group, case, present, number, effort, tick)

    return Job(f"pages {what}", page_bytes, run)


def _race(
    group: str, case: Case, who: Sequence[Contestant], number: int, effort: Effort, tick: Tick
) -> list[Series]:
    able, wrong, unable = [], {}, []
    for each in who:
        try:
            wrong[each.name] = each.check(case, number)
            able.append(each)
        except (Error, RuntimeError, OSError, AttributeError, ImportError) as error:
            unable.append(
                Series(group, each.name, case.page_bytes, None, None, verdict="unsupported",
                       note=str(error)[:300])
            )  # fmt: skip
    return race(group, case, able, wrong, effort, tick) + unable


def gpus_of(text: str) -> tuple[int, int] | None:
    """The source's and the target's; None for what is none."""
    words = text.split(",")
    if len(words) != 2 or not all(word.isdecimal() for word in words):
        return None
    return int(words[0]), int(words[1])


def main() -> int:
    """The exit code of the run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--commit", default="")
    parser.add_argument("--mib", type=int, default=512, help="of pages on the GPU")
    parser.add_argument("--host-mib", type=int, default=256, help="of pages on the host")
    parser.add_argument("--seconds", type=float, default=20.0, help="of measuring")
    parser.add_argument("--gpus", default="0,0", help="the source's and the target's number")
    asked: Any = parser.parse_args()
    gpus = gpus_of(asked.gpus)
    if gpus is None:
        print(f"--gpus: asked for two numbers, found {asked.gpus!r}", file=sys.stderr)  # noqa: T201
        return 2
    if (count := torch.cuda.device_count()) <= max(gpus):
        print(f"--gpus: asked for {asked.gpus}, torch sees {count} here", file=sys.stderr)  # noqa: T201
        return 2
    who = _Field(asked.mib << 20, asked.host_mib << 20, gpus)
    output = Output(20, asked.seconds, asked.json, commit=asked.commit)
    settings = {"mib": str(asked.mib), "host_mib": str(asked.host_mib), "gpus": asked.gpus}
    name = torch.cuda.get_device_name(gpus[0])
    try:
        return measure(
            Run("transfer-engine", name, _jobs(who), output, settings, figures=ratios_of)
        )
    finally:
        who.close()


if __name__ == "__main__":
    sys.exit(main())
