"""A KV cache between two processes on one GPU, in the shape of a model of 70 billion parameters: 80
layers, 8 heads of keys and values, 128 elements each of bfloat16, blocks of 16 tokens. Pushed and
pulled, beside the engine alone with as many pages of that size in the same run.
`python -m braid.bench.kv.gpu --json FILE`.
"""

import argparse
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from braid.bench.engine import contestants as engine
from braid.bench.engine.contestants import Case, Contestant
from braid.bench.engine.jobs import race
from braid.bench.kv.contestants import Requests
from braid.bench.kv.jobs import ratios_of
from braid.probe.effort import Effort
from braid.probe.job import Job, Tick
from braid.probe.publish import Output, Run, measure
from braid.record.probe import Series
from braid.sizes import format_size

_LAYERS, _HEADS, _ELEMENTS, _BLOCK, _ELEMENT_BYTES = 80, 8, 128, 16, 2
_HALF = _HEADS * _ELEMENTS * _BLOCK * _ELEMENT_BYTES
PAGES = {"keys and values together": 2 * _HALF, "keys and values apart": _HALF}
"""Bytes of a layer's page."""


@dataclass
class Field:
    """Who is measured; started once."""

    nbytes: int
    device: str
    layers: int
    gap: int
    present: list[Contestant] = field(default_factory=list)

    def enter(self) -> list[Contestant]:
        """braid.kv's two, and the engine alone."""
        if not self.present:
            also = (str(self.layers), self.device, str(self.gap))
            for is_push in (True, False):
                self.present.append(
                    Requests("local", self.nbytes, is_push=is_push, module="gpu_peer", also=also)
                )
            self.present.append(self._alone())
        return self.present

    def _alone(self) -> Contestant:
        if self.device == "cpu":
            pair: Any = engine.engine("local", self.nbytes)
        else:
            from braid.bench.engine.gpu import engine as of_gpu
            from braid.bench.engine.gpu_peer import GPU

            pair = of_gpu(self.nbytes, 1 << 20)
            pair.choose(GPU, GPU)
        pair.name = "the engine alone"
        found: Contestant = pair
        return found

    def close(self) -> None:
        """Ends the processes."""
        for each in self.present:
            each.close()


def job_of(what: str, page_bytes: int, tokens: int, number: int, who: Field) -> Job:
    """A request of so many tokens."""
    count = who.layers * -(-tokens // _BLOCK)
    case = Case("pages", page_bytes, count)
    if page_bytes == _HALF:
        case = Case("pages", page_bytes, 2 * count)
    group = f"{tokens} tokens, {what}, {case.count} pages of {format_size(page_bytes)}"
    if who.gap:
        group += ", layers apart"

    def run(effort: Effort, tick: Tick) -> list[Series]:
        present = who.enter()
        wrong = {each.name: each.check(case, number) for each in present}
        return race(group, case, present, wrong, effort, tick)

    return Job(group, page_bytes, run)


def main(arguments: list[str] | None = None) -> int:
    """The exit code of the run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--commit", default="")
    parser.add_argument("--tokens", default="1024,4096", help="of a request, a list")
    parser.add_argument("--layers", type=int, default=_LAYERS)
    parser.add_argument("--seconds", type=float, default=20.0, help="of measuring")
    parser.add_argument("--apart", action="store_true",
                        help="layers as if each were an allocation of its own")  # fmt: skip
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda",
                        help="cpu: a trial without a GPU")  # fmt: skip
    asked = parser.parse_args(arguments)
    if asked.device == "cuda" and not torch.cuda.is_available():
        print("no GPU here", file=sys.stderr)  # noqa: T201
        return 2
    tokens = [int(text) for text in asked.tokens.split(",")]
    gap = int(asked.apart)
    nbytes = asked.layers * (-(-max(tokens) // _BLOCK) + gap) * 2 * _HALF
    who = Field(nbytes, asked.device, asked.layers, gap)
    jobs = [
        job_of(what, page_bytes, many, number, who)
        for number, (many, what, page_bytes) in enumerate(
            [(many, *page) for many in tokens for page in PAGES.items()], start=1
        )
    ]
    output = Output(20, asked.seconds, asked.json, commit=asked.commit)
    settings = {"layers": str(asked.layers), "tokens": asked.tokens, "apart": str(asked.apart)}
    name = torch.cuda.get_device_name(0) if asked.device == "cuda" else ""
    try:
        return measure(Run("kv-pages", name, jobs, output, settings, figures=ratios_of))
    finally:
        who.close()


if __name__ == "__main__":
    sys.exit(main())
