"""Inference of Llama-3 8B's layers by tensor parallelism, over braid and over NCCL in turn.

    braid run -n 2 examples/recipes/tp_llama.py --json tp.json    # 32 layers, bfloat16
    braid run -n 2 examples/recipes/tp_llama.py --cpu             # tiny, beside Gloo; seconds

The layers are cut as Megatron cuts them: a rank has some of the heads and some of the MLP's
columns, and after each half the ranks' parts are summed by one all_reduce. A prefill takes a prompt
through all layers and fills the cache of keys and values; a decode takes one token of each
sequence through them, eager and, on GPUs, as a CUDA graph. Weights are random.

Checked: a layer gives what it gives uncut; the same pass gives the same bits again, and the same
on every rank; with two ranks, where a sum has one order, both libraries give the same bits. Such a
claim is about the sums only where all else stays the same: torch's kernels are told to be
deterministic, a pass writes the same keys and values to the same places as the one before, and what
a rank computes between two sums must give the same bits again on its own. The exit code is 1 where
a claim fails.
"""

import argparse
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from bits import Bits
from contest import Contest, Contestant
from exact import make_deterministic
from llama import Cache, Layer, parts_of, random, run_layers
from sheet import publish, record_of
from traffic import Replay, Tap

from braid.plan import models
from braid.plan.parallel.block import Shape
from braid.record.probe import Series

TINY = Shape(16, 64, 4, 2, 16, 128)
Runs = dict[str, Callable[[], object]]
Parts = dict[str, Callable[[], torch.Tensor]]


class Pass:
    """One contestant's way through all layers."""

    def __init__(
        self, contestant: Contestant, layers: list[Layer], args: argparse.Namespace
    ) -> None:
        self.contestant, self._layers, self._prompt = contestant, layers, args.prompt
        longest = args.prompt + 1
        self._prefilled = [Cache(layer, 1, longest) for layer in layers]
        self._caches = [Cache(layer, args.batch, longest) for layer in layers]

    def add(self, part: torch.Tensor) -> None:
        """The sum of all ranks' parts, in place."""
        dist.all_reduce(part, group=self.contestant.group)

    def prefill(self, x: torch.Tensor) -> torch.Tensor:
        """x [1, prompt, hidden] and the result alike."""
        return run_layers(self._layers, self._prefilled, x, 0, self.add)

    def prefill_parts(self, x: torch.Tensor) -> Parts:
        """What the prefill of `x` is made of, without sums. The cache is of no use until the next
        prefill.
        """
        return parts_of(self._layers, self._prefilled, x, 0)

    def decode_parts(self, x: torch.Tensor) -> Parts:
        """The same of a decode, whose place in the cache the next decode fills again."""
        return parts_of(self._layers, self._caches, x, self._prompt)

    def share_prompt(self) -> None:
        """Every sequence of the decode has the prompt that was prefilled."""
        for filled, cache in zip(self._prefilled, self._caches, strict=True):
            cache.take(filled)

    def decode(self, x: torch.Tensor) -> torch.Tensor:
        """x [batch, 1, hidden]. The token's place stays the same, so that all calls are alike."""
        return run_layers(self._layers, self._caches, x, self._prompt, self.add)


class Graph:
    """A call as a CUDA graph; `result` is what the call returned, written anew by each replay."""

    def __init__(self, call: Callable[[], object]) -> None:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            call()
        torch.cuda.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, capture_error_mode="relaxed"):
            self.result = call()
        self.replay = self._graph.replay


def communication(
    contest: Contest, what: str, runs: Mapping[str, Callable[[], object]], samples: int
) -> list[Series]:
    """The collectives of a pass: in it, alone, and on GPUs alone in a graph."""
    busy: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(3):
        for name, run in runs.items():
            with Tap(contest.device) as tap:
                contest.timed_us(run)
            busy[name].append(tap.busy_us())
    replay = Replay(tap.calls, contest.device)
    wrong = {r.name: sum(contest.told(replay.wrong_bytes(r.group))) for r in contest.contestants}
    inside = f"{what}: collectives"
    series = [contest.series(inside, name, us, replay.nbytes) for name, us in busy.items()]
    alone: Runs = {r.name: partial(replay.run, r.group) for r in contest.contestants}
    series += contest.measure(f"{inside} alone", alone, samples, replay.nbytes, wrong)
    if contest.device.type == "cuda":
        graphs: Runs = {name: Graph(run).replay for name, run in alone.items()}
        series += contest.measure(f"{inside} alone, graph", graphs, samples, replay.nbytes)
    return series


def layers_of(contest: Contest, args: argparse.Namespace) -> list[Layer]:
    """This rank's part of every layer."""
    whole = TINY if args.cpu else Shape.of(models.find("llama3-8b"), 1, args.prompt)
    dtype = torch.float32 if args.cpu else torch.bfloat16
    return [
        Layer(whole, contest.rank, contest.size, contest.device, dtype, seed)
        for seed in range(args.layers)
    ]


def run(contest: Contest, args: argparse.Namespace, bits: Bits) -> list[Series]:
    """Checks and times everything."""
    layers = layers_of(contest, args)
    first = layers[0]
    x = random((1, args.prompt, first.shape.hidden), 1, first.device, first.dtype)
    y = random((args.batch, 1, first.shape.hidden), 2, first.device, first.dtype)
    passes = [Pass(contestant, layers, args) for contestant in contest.contestants]
    prefills: Runs = {one.contestant.name: partial(one.prefill, x) for one in passes}
    decodes: Runs = {one.contestant.name: partial(one.decode, y) for one in passes}
    bits.uncut(first, passes[0].add)
    for name, part in passes[0].prefill_parts(x).items():
        bits.alone(f"prefill: {name} alone", part)
    bits.note("prefill", prefills)
    for one in passes:
        one.share_prompt()
    for name, part in passes[0].decode_parts(y).items():
        bits.alone(f"decode: {name} alone", part)
    bits.note("decode", decodes)
    series = contest.measure("prefill", prefills, args.samples)
    series += communication(contest, "prefill", prefills, args.samples)
    series += contest.measure("decode", decodes, args.samples)
    series += communication(contest, "decode", decodes, args.samples)
    if contest.device.type == "cuda":
        graphs = {name: Graph(call) for name, call in decodes.items()}
        series += contest.measure(
            "decode, graph", {name: each.replay for name, each in graphs.items()}, args.samples
        )
        for _ in range(2):
            bits.note("decode, graph", {name: partial(_replayed, g) for name, g in graphs.items()})
    bits.note("prefill", prefills)
    bits.note("decode", decodes)
    return series


def _replayed(graph: Graph) -> object:
    graph.replay()
    return graph.result


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cpu", action="store_true", help="tiny layers on CPUs, beside Gloo")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--prompt", type=int, default=2048, help="tokens of the prefill")
    parser.add_argument("--batch", type=int, default=8, help="sequences of the decode")
    parser.add_argument("--samples", type=int, default=20, help="samples of everything")
    parser.add_argument("--json", type=Path, help="write a record here; - is standard output")
    parser.add_argument("--commit", default="", help="of a tree without git, for the record")
    args = parser.parse_args()
    if args.cpu:
        args.layers, args.prompt, args.batch, args.samples = 2, 16, 2, min(args.samples, 3)
    return args


def main() -> int:
    args = arguments()
    if args.cpu:
        torch.set_num_threads(1)
    make_deterministic()
    contest = Contest(on_cpus=args.cpu)
    bits = Bits(contest)
    with torch.no_grad():
        series = run(contest, args, bits)
    record = record_of("tp-inference", contest, series, bits.figures, vars(args))
    if contest.rank == 0:
        publish(record, args.json)
        for claim in bits.failed:
            print(f"does not hold: {claim}", file=sys.stderr)
        print(f"bits agree: {'yes' if bits.are_right else 'NO'}", file=sys.stderr)
    contest.close()
    return 0 if bits.are_right and not record.is_bad else 1


if __name__ == "__main__":
    sys.exit(main())
