"""Steps of training in a program that knows nothing of braid: losses, times, and where to put them.

What trains here names NCCL and nothing else, so that the same program runs beside braid by the
environment alone; `tests/gpu/apps/run.py` runs it both ways and compares what the files say.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import torch

WARM_STEPS = 2
"""Not timed: libraries set themselves up."""


def arguments(parser: argparse.ArgumentParser, *, on_cpus: bool = False) -> argparse.Namespace:
    """What every such program is asked; `on_cpus` if it can do without GPUs."""
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--context", type=int, default=1024, help="tokens (bytes) of a sequence")
    parser.add_argument("--batch", type=int, default=4, help="sequences of a rank's step")
    parser.add_argument("--steps", type=int, default=10, help=f"timed; {WARM_STEPS} more are not")
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--out", help="losses and times of a rank; %%r is its number")
    if on_cpus:
        parser.add_argument("--cpu", action="store_true", help="a tiny model on CPUs, by Gloo")
    parser.set_defaults(cpu=False)
    args = parser.parse_args()
    if args.cpu:
        args.layers, args.width, args.context, args.batch, args.lr = 2, 64, 32, 4, 1e-2
        torch.set_num_threads(1)
    return args


def device_of(args: argparse.Namespace) -> torch.device:
    """This rank's; its own from here on. Of GPUs the first, where a launcher shows it no other."""
    if args.cpu:
        return torch.device("cpu")
    place = int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count()
    device = torch.device("cuda", place)
    torch.cuda.set_device(device)
    return device


class Steps:
    """What one rank's steps gave."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._losses: list[float] = []
        self._step_us: list[float] = []

    def take(self, step: Callable[[], torch.Tensor]) -> None:
        """Makes a step, which answers with its loss. No barrier: steps wait for each other by
        their own collectives.
        """
        self._wait()
        began = time.perf_counter()
        loss = step()
        self._wait()
        self._step_us.append((time.perf_counter() - began) * 1e6)
        self._losses.append(float(loss.detach()))

    def tell(self, what: str, parameters: int, out: str | None) -> None:
        """Every loss to the bit on standard output, and in a file if one is asked for."""
        rank = os.environ.get("RANK", "0")
        losses = " ".join(loss.hex() for loss in self._losses)
        last = f"{self._losses[0]:.4f} to {self._losses[-1]:.4f}"
        print(f"rank {rank}, {what}, {last}: {losses}\n", end="", flush=True)
        if out:
            told = {
                "what": what,
                "device": torch.cuda.get_device_name() if self._device.type == "cuda" else "",
                "parameters": parameters,
                "losses": [loss.hex() for loss in self._losses],
                "times_us": {"step": self._step_us[WARM_STEPS:]},
            }
            Path(out.replace("%r", rank)).write_text(json.dumps(told), encoding="utf-8")

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
