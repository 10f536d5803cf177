"""Train a GPT with FSDP2 (fully_shard), or DDP, by braid and by NCCL, step by step in turn.

    braid run -n 2 examples/recipes/train_gpt.py --json fsdp2.json      # 1.2e9 parameters
    braid run -n 2 examples/recipes/train_gpt.py --how ddp --json ddp.json
    braid run -n 2 examples/recipes/train_gpt.py --layers 32 --width 2560 --batch 2
    braid run -n 2 examples/recipes/train_gpt.py --cpu                  # tiny, beside Gloo; seconds

Two models with the same parameters learn from the same text, this repository's pages. Printed and
recorded: the time of a step; the time of its collectives, in the step and alone; bytes that were
wrong; the largest gap between the two losses of a step. Products are in bfloat16. Under FSDP2
parameters are sharded in float32, travel in bfloat16, and gradients are summed in float32
(--reduce); DDP sums float32 gradients by buckets, from C++, so that their time is told alone only.

With two ranks a sum has one order, so the losses of the two are equal as far as the GPU's own
kernels are: attention's backward pass adds in any order unless --deterministic. The exit code is 1
when losses differ by more, when they do not fall, or when a byte was wrong.
"""

import argparse
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
from contest import Contest, leave_out_collections, turned
from exact import make_deterministic
from gpt import Shape, batches
from sheet import publish, record_of
from traffic import Call, Replay, Tap
from trainees import Trainee, trainees

from braid.record.probe import Series

WARM_STEPS, TAPPED_STEPS = 2, 3
Batches = Iterator[tuple[torch.Tensor, torch.Tensor]]
CLOSE = 0.02
"""What losses may differ by where kernels add in any order."""


def train(contest: Contest, every: list[Trainee], data: Batches, steps: int) -> list[Call]:
    """All steps; the last ones are tapped. A step's collectives, which all ranks make alike."""
    calls: list[Call] = []
    for i, (text, wanted) in enumerate(data):
        if i == WARM_STEPS:
            leave_out_collections()
        for trainee in turned(every, i):
            step = partial(trainee.step, text, wanted)
            if i < WARM_STEPS + steps:
                us = contest.timed_us(step)
                if i >= WARM_STEPS:
                    trainee.step_us.append(us)
                continue
            with Tap(contest.device) as tap:
                contest.timed_us(step)
            trainee.busy_us.append(tap.busy_us())
            calls = tap.calls or trainee.buckets()
    return calls


def alone(contest: Contest, calls: list[Call], samples: int) -> list[Series]:
    """The collectives of one step with nothing beside them."""
    replay = Replay(calls, contest.device)
    wrong = {r.name: sum(contest.told(replay.wrong_bytes(r.group))) for r in contest.contestants}
    runs = {r.name: partial(replay.run, r.group) for r in contest.contestants}
    return contest.measure("collectives alone", runs, samples, replay.nbytes, wrong)


def losses_of(contest: Contest, every: list[Trainee]) -> dict[str, float]:
    """What the two learned, and how far apart they were. Collective."""
    curves = [torch.stack(trainee.losses).double().cpu() for trainee in every]
    gaps = (curves[0] - curves[1]).abs()
    told = contest.told((gaps.max().item(), int((gaps == 0).sum())))
    means = [sum(contest.told(curve[i].item())) / contest.size for curve in curves for i in (0, -1)]
    return {
        "steps": float(len(gaps)),
        "largest gap of a loss": max(gap for gap, _ in told),
        "steps with losses equal to the bit on all ranks": float(min(n for _, n in told)),
        "first loss": means[0],
        "braid: last loss": means[1],
        f"{every[1].contestant.name}: last loss": means[3],
    }


def curves_of(every: list[Trainee]) -> dict[str, str]:
    """This rank's loss in every step, for the record."""
    return {
        f"losses, {one.contestant.name}": " ".join(f"{loss.item():.5f}" for loss in one.losses)
        for one in every
    }


def is_right(figures: dict[str, float], limit: float) -> bool:
    """Losses fall, and are those of the other."""
    return figures["largest gap of a loss"] <= limit and all(
        loss < figures["first loss"] for name, loss in figures.items() if "last loss" in name
    )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cpu", action="store_true", help="a tiny model on CPUs, beside Gloo")
    parser.add_argument("--how", choices=("fsdp2", "ddp"), default="fsdp2")
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--context", type=int, default=1024, help="tokens (bytes) of a sequence")
    parser.add_argument("--batch", type=int, default=4, help="sequences of a rank's step")
    parser.add_argument("--steps", type=int, default=16, help="timed; 5 more are not")
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--reduce", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument("--json", type=Path, help="write a record here; - is standard output")
    parser.add_argument("--commit", default="", help="of a tree without git, for the record")
    args = parser.parse_args()
    if args.cpu:
        args.layers, args.width, args.context, args.batch, args.lr = 2, 64, 32, 4, 1e-2
        args.steps = min(args.steps, 6)
    return args


def prepare(args: argparse.Namespace) -> None:
    """What must be set before anything runs."""
    if args.cpu:
        torch.set_num_threads(1)
    if args.deterministic:
        make_deterministic()


def race(
    contest: Contest, args: argparse.Namespace, shape: Shape, every: list[Trainee]
) -> tuple[list[Series], dict[str, float]]:
    """Trains both, and times what their steps were made of."""
    steps = WARM_STEPS + args.steps + TAPPED_STEPS
    data = batches(steps, args.batch, shape, contest.rank, contest.device)
    calls = train(contest, every, data, args.steps)
    series = [contest.series("step", one.contestant.name, one.step_us) for one in every]
    if args.how == "fsdp2":
        moved, busy = sum(call.nbytes for call in calls), "collectives in a step"
        series += [contest.series(busy, one.contestant.name, one.busy_us, moved) for one in every]
    series += alone(contest, calls, samples=4 if args.cpu else 15)
    return series, {
        "parameters": float(sum(p.numel() for p in every[0].model.parameters())),
        "collectives of a step": float(len(calls)),
        **losses_of(contest, every),
    }


def main() -> int:
    args = arguments()
    prepare(args)
    contest = Contest(on_cpus=args.cpu)
    shape = Shape(args.layers, args.width, max(1, args.width // 128), args.context)
    every = trainees(args, shape, contest)
    series, figures = race(contest, args, shape, every)
    limit = 0.0 if contest.size == 2 and (args.cpu or args.deterministic) else CLOSE
    settings = {**vars(args), **curves_of(every)}
    record = record_of(f"{args.how}-step", contest, series, figures, settings)
    if contest.rank == 0:
        publish(record, args.json)
        print(f"losses agree: {'yes' if is_right(figures, limit) else 'NO'}", file=sys.stderr)
    contest.close()
    return 0 if is_right(figures, limit) and not record.is_bad else 1


if __name__ == "__main__":
    sys.exit(main())
