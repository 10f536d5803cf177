"""Weights of a trainer's GPU memory to a worker's, in two processes that share a GPU or have one
each: however parameters lie on either side, in the worker's dtype too, every element is compared,
as soon as the version is named and on a stream that waits for nothing.

python3 tests/gpu/weights.py            # needs one GPU and torch
python3 tests/gpu/weights.py 0 1        # the trainer's GPU and the worker's
"""

import multiprocessing as mp
import sys
from multiprocessing.connection import Connection
from typing import Any

import torch

import braid
from braid.weights import Parameter, Receiver, Sender

LIMIT_S = 60
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
MODES = ("two buffers", "in place")
# The worker has the rows behind these.
FIRST = 100


def shape_of(there: str) -> tuple[int, int]:
    """The second is so much that copy engines take the rows."""
    return (20480, 2048) if there == "many columns" else (1200, 1024)


def whole(version: int, shape: tuple[int, int]) -> torch.Tensor:
    """By place and version; whole numbers that bfloat16 has, too."""
    rows, columns = shape
    places = torch.arange(rows * columns, device="cuda", dtype=torch.int64)
    return ((places * 7 + places // columns * 3 + version * 11) % 251).float().view(shape)


def held(how: str, shape: tuple[int, int]) -> tuple[torch.Tensor, list[Parameter]]:
    """What the trainer fills with whole(), and how it is told."""
    rows, columns = shape
    if how == "turned":
        lies = torch.zeros(columns, rows, device="cuda").T
        return lies, [Parameter("w", lies)]
    if how == "fused":
        fused = torch.zeros(rows + 5, columns, device="cuda")
        told = Parameter("w", fused, shape, offset=2 * columns, size=shape, strides=(columns, 1))
        return fused[2 : rows + 2], [told]
    lies = torch.zeros(rows, columns, device="cuda")
    return lies, [Parameter("w", lies)]


def kept(how: str, dtype: torch.dtype) -> tuple[torch.Tensor, list[Parameter]]:
    """What the worker serves from, and how it is told."""
    shape = rows, columns = shape_of(how)
    size = (rows - FIRST, columns)
    if how.endswith("columns"):
        lies = torch.full((rows - FIRST, columns + 7), -7, dtype=dtype, device="cuda")
        mine = lies[:, 3 : columns + 3]
    elif how == "turned":
        mine = torch.full(size[::-1], -7, dtype=dtype, device="cuda").T
    else:
        mine = torch.full(size, -7, dtype=dtype, device="cuda")
    if how != "two views":
        return mine, [Parameter("w", mine, shape, start=(FIRST, 0))]
    above = Parameter(
        "w", mine[:], shape, start=(FIRST, 0), size=(500, columns), strides=(columns, 1)
    )
    below = Parameter(
        "w", mine[:], shape, start=(FIRST + 500, 0), size=(rows - FIRST - 500, columns),
        strides=(columns, 1), offset=500 * columns,
    )  # fmt: skip
    return mine, [above, below]


LAYS = ("plain", "fused", "turned")
KEPT = ("columns", "many columns", "turned", "two views")
CASES = [(how, name, mode, "rows") for how in LAYS for name in DTYPES for mode in MODES]
CASES += [("plain", name, mode, lies) for lies in KEPT for name in DTYPES for mode in MODES]


def to_dtype(_name: str, piece: torch.Tensor, dtype: str) -> torch.Tensor:
    return piece.to(DTYPES[dtype])


def worker(pipe: Connection, gpu: int) -> None:
    torch.cuda.set_device(gpu)
    with braid.Engine(name="worker", device=gpu, nics="none") as engine:
        aside = torch.cuda.Stream()
        for _, dtype, mode, lies in CASES:
            mine, parameters = kept(lies, DTYPES[dtype])
            shape = shape_of(lies)
            wanted = [whole(version, shape)[FIRST:].to(DTYPES[dtype]) for version in (1, 2)]
            torch.cuda.synchronize()
            with Receiver(engine, 0, parameters, mode=mode) as receiver:
                pipe.send(receiver.describe())
                receiver.join(pipe.recv())
                for version in (1, 2):
                    receiver.wait(version, LIMIT_S)
                    with torch.cuda.stream(aside):
                        pipe.send(torch.equal(mine, wanted[version - 1]))


def check(engine: braid.Engine, pipe: Any, case: tuple[str, str, str, str]) -> int:
    """How many versions came wrong."""
    how, dtype, mode, there = case
    lies, parameters = held(how, shape_of(there))
    wrong = 0
    with Sender(engine, 0, parameters, cast=to_dtype) as sender:
        told = [sender.describe(), pipe.recv()]
        pipe.send(told)
        sender.join(told)
        for version in (1, 2):
            lies.copy_(whole(version, shape_of(there)))
            torch.cuda.synchronize()
            sender.update(version, LIMIT_S)
            is_right = pipe.recv()
            verdict = "right" if is_right else "WRONG"
            print(f"{how} to {there}, {dtype}, {mode}, version {version}: {verdict}")
            wrong += not is_right
    return wrong


def main() -> int:
    mine, other = [int(word) for word in sys.argv[1:3]] or [0, 0]
    torch.cuda.set_device(mine)
    mp.set_start_method("spawn")
    ours, theirs = mp.Pipe()
    process = mp.Process(target=worker, args=(theirs, other), daemon=True)
    process.start()
    theirs.close()
    with braid.Engine(name="trainer", device=mine, nics="none") as engine:
        wrong = sum(check(engine, ours, case) for case in CASES)
    process.join(LIMIT_S)
    print(f"weights, GPU {mine} to GPU {other}: {len(CASES)} cases, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
