"""A KV cache between two processes on one GPU, in the shape of a model of 70 billion parameters: 80
layers, 8 heads of keys and values, 128 elements each of bfloat16, blocks of 16 tokens. Pushed and
pulled, one request at a time and several under way, beside the engine alone with as many pages of
that size and as many calls under way in the same run; and what one request's time goes to.
`python -m braid.bench.kv.gpu --json FILE`.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

try:
    import torch
except ModuleNotFoundError:
    raise ModuleNotFoundError("braid.bench.kv.gpu needs PyTorch: pip install torch") from None

from braid.bench.engine import contestants as engine
from braid.bench.engine.contestants import Case, Contestant, Pair
from braid.bench.engine.jobs import race
from braid.bench.kv.contestants import CALL_PAGES, Requests, Servers, Warm
from braid.bench.kv.jobs import ratios_of
from braid.probe.effort import Effort
from braid.probe.job import Job, Tick
from braid.probe.publish import Output, Run, measure
from braid.record.probe import Series, times_of
from braid.sizes import format_size

_LAYERS, _HEADS, _ELEMENTS, _BLOCK, _ELEMENT_BYTES = 80, 8, 128, 16, 2
_HALF = _HEADS * _ELEMENTS * _BLOCK * _ELEMENT_BYTES
TOGETHER, APART = "keys and values together", "keys and values apart"
PAGES = {TOGETHER: 2 * _HALF, APART: _HALF}
"""Bytes of a layer's page."""
_COPIES = 4
"""Of the largest case there are so many: the prefiller's, the decoder's, and the engine's two."""
_BESIDE = 6 << 30
"""Bytes for what five processes need besides: contexts, torch, what is compared at a time."""
_STREAM_US = 100_000.0
_STEPS = 60


@dataclass(frozen=True)
class Load:
    """Requests of so many tokens, so many of them under way."""

    tokens: int
    at_once: int = 1

    def pages(self, layers: int) -> int:
        """Of one request in all layers."""
        return layers * -(-self.tokens // _BLOCK)

    def nbytes(self, layers: int) -> int:
        """Of all that are under way."""
        return self.at_once * self.pages(layers) * 2 * _HALF

    def __str__(self) -> str:
        return f"{self.tokens} tokens" + (f", {self.at_once} at once" if self.at_once > 1 else "")


@dataclass
class Field:
    """Who is measured; started once."""

    nbytes: int
    device: str
    layers: int
    gap: int
    call_pages: Sequence[tuple[int, int]] = ()
    """Other numbers of pages in calls of the engine that are measured, too."""
    present: list[Contestant] = field(default_factory=list)

    def enter(self) -> list[Contestant]:
        """braid.kv's two, and the engine alone."""
        if not self.present:
            also = (str(self.layers), self.device, str(self.gap))
            servers = Servers("local", self.nbytes, module="gpu_peer", also=also)
            for pages in (CALL_PAGES, *self.call_pages):
                for is_push in (True, False):
                    self.present.append(Requests(servers, is_push=is_push, call_pages=pages))
            self.present.append(Warm(self._alone(), "the engine alone"))
        return self.present

    def _alone(self) -> Pair:
        if self.device == "cpu":
            return engine.engine("local", self.nbytes)
        from braid.bench.engine.gpu import engine as of_gpu
        from braid.bench.engine.gpu_peer import GPU

        pair = of_gpu(self.nbytes, 1 << 20)
        pair.choose(GPU, GPU)
        return pair

    def close(self) -> None:
        """Ends the processes."""
        for each in self.present:
            each.close()


def case_of(load: Load, page_bytes: int, layers: int) -> Case:
    """Keys and values that lie apart are twice as many pages."""
    count = load.pages(layers) * (2 * _HALF // page_bytes)
    kind = "several" if load.at_once > 1 else "pages"
    return Case(kind, page_bytes, count, load.at_once, layers)


def job_of(what: str, load: Load, number: int, who: Field) -> Job:
    """Requests of one length, beside the engine."""
    case = case_of(load, PAGES[what], who.layers)
    group = _group(what, load, who)

    def run(effort: Effort, tick: Tick) -> list[Series]:
        present = who.enter()
        wrong = {each.name: each.check(case, number) for each in present}
        if case.at_once > 1:
            return race(group, case, present, wrong, effort, tick, _STREAM_US)
        return race(group, case, present, wrong, effort, tick)

    return Job(group, case.page_bytes, run)


def steps_of(what: str, load: Load, who: Field) -> Job:
    """What the time of one request goes to."""
    case = case_of(load, PAGES[what], who.layers)

    def run(effort: Effort, tick: Tick) -> list[Series]:
        del effort
        found = []
        for each in who.enter()[:2]:
            if isinstance(each, Requests):
                steps = each.steps_us(case, _STEPS)
                tick(_STEPS)
                found += [
                    Series(f"{load}, {each.name}, step by step", step, case.page_bytes,
                           times_of(times), None)
                    for step, times in steps.items()
                ]  # fmt: skip
        return found

    return Job(f"{load}, step by step", case.page_bytes, run)


def _group(what: str, load: Load, who: Field) -> str:
    case = case_of(load, PAGES[what], who.layers)
    apart = ", layers apart" if who.gap else ""
    return f"{load}, {what}, {case.count} pages of {format_size(case.page_bytes)}{apart}"


def loads_of(tokens: str, several: str) -> list[Load]:
    """Of lists as "1024,4096" and "1024x4,1024x8"."""
    one = [Load(int(text)) for text in tokens.split(",") if text]
    many = [text.split("x") for text in several.split(",") if text]
    return one + [Load(int(length), int(number)) for length, number in many]


def room(device: str) -> int:
    """Bytes that are free for the largest case's pages; half of what the host has."""
    if device == "cpu":
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2 // _COPIES
    free = int(torch.cuda.mem_get_info()[0])
    return max(0, free - _BESIDE) // _COPIES


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--commit", default="")
    parser.add_argument("--tokens", default="1024,4096,16384,32768",
                        help="of a request, one at a time: a list")  # fmt: skip
    parser.add_argument("--several", default="1024x4,1024x8,4096x4,4096x8",
                        help="of a request, x how many are under way: a list")  # fmt: skip
    parser.add_argument("--call-pages", default="",
                        help="also with so many pages in a request's first call of the engine / "
                             "and in another: a list")  # fmt: skip
    parser.add_argument("--layers", type=int, default=_LAYERS)
    parser.add_argument("--seconds", type=float, default=40.0, help="of measuring")
    parser.add_argument("--apart", action="store_true",
                        help="layers as if each were an allocation of its own")  # fmt: skip
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda",
                        help="cpu: a trial without a GPU")  # fmt: skip
    return parser


def main(arguments: list[str] | None = None) -> int:
    """The exit code of the run."""
    asked = _parser().parse_args(arguments)
    if asked.device == "cuda" and not torch.cuda.is_available():
        print("torch sees no GPU here; --device cpu is a trial without", file=sys.stderr)  # noqa: T201
        return 2
    gap = int(asked.apart)
    beside = gap * asked.layers * 2 * _HALF
    loads, most = loads_of(asked.tokens, asked.several), room(asked.device) - beside
    able = [load for load in loads if load.nbytes(asked.layers) <= most]
    left_out = ", ".join(
        f"{load}: {load.nbytes(asked.layers)} bytes" for load in loads if load not in able
    )
    if left_out:
        left_out = f"{left_out}; there was room for {most}"
        print(f"left out: {left_out}", file=sys.stderr, flush=True)  # noqa: T201
    if not able:
        return 2
    nbytes = max(load.nbytes(asked.layers) for load in able) + beside
    pairs = [text.split("/") for text in asked.call_pages.split(",") if text]
    call_pages = [(int(first), int(most)) for first, most in pairs]
    who = Field(nbytes, asked.device, asked.layers, gap, call_pages)
    each = [
        (what, load) for load in able for what in PAGES if load.at_once == 1 or what == TOGETHER
    ]
    jobs = [job_of(what, load, number, who) for number, (what, load) in enumerate(each, start=1)]
    jobs += [steps_of(TOGETHER, load, who) for load in able[:2] if load.at_once == 1]
    output = Output(20, asked.seconds, asked.json, commit=asked.commit)
    settings = {
        "layers": str(asked.layers), "tokens": asked.tokens, "several": asked.several,
        "call_pages": asked.call_pages, "apart": str(asked.apart), "left_out": left_out,
    }  # fmt: skip
    name = torch.cuda.get_device_name(0) if asked.device == "cuda" else ""
    try:
        return measure(Run("kv-pages", name, jobs, output, settings, figures=ratios_of))
    finally:
        who.close()


if __name__ == "__main__":
    sys.exit(main())
