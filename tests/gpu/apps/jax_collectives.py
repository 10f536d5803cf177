"""JAX's collectives over all GPUs of one process, every result compared.

    python3 tests/gpu/apps/jax_collectives.py --out told.json

XLA opens NCCL by its name, makes a communicator of a thread per GPU, and captures calls in graphs.
Numbers are small integers, so that a sum is exact in every type and order. Times are of bfloat16
sums, a jitted call each, twenty in a row.
"""

import argparse
import functools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

COUNTS = (8, 1000, 1 << 16, 1 << 20, 1 << 24)
"""Elements of a GPU."""
TYPES = (jnp.float32, jnp.bfloat16, jnp.float16, jnp.int32)
TIMED = {"64 KiB": 64 << 10, "1 MiB": 1 << 20, "16 MiB": 16 << 20, "256 MiB": 256 << 20}
SAMPLES, CALLS = 10, 20
AXIS = "gpu"
CUT, WHOLE = PartitionSpec(AXIS), PartitionSpec()


class Gpus:
    """All of them, as one row."""

    def __init__(self) -> None:
        self.size = jax.device_count()
        self._mesh = Mesh(np.array(jax.devices()), (AXIS,))

    def over(self, body: Callable[[jax.Array], jax.Array], out: PartitionSpec = CUT) -> Callable:
        """`body` on every GPU's part, as one compiled call."""
        mapped = getattr(jax, "shard_map", None)
        if mapped is None:
            from jax.experimental.shard_map import shard_map as mapped
        return jax.jit(mapped(body, mesh=self._mesh, in_specs=CUT, out_specs=out))

    def cut(self, numbers: np.ndarray, dtype: type) -> jax.Array:
        """An equal part for each."""
        return jax.device_put(
            jnp.asarray(numbers).astype(dtype), NamedSharding(self._mesh, CUT)
        )  # fmt: skip


Case = tuple[str, Callable, np.ndarray]


def cases(gpus: Gpus, rows: np.ndarray) -> Iterator[Case]:
    """A collective, and what it must give of these rows, one a GPU."""
    n = gpus.size
    in_turn = [(i, (i + 1) % n) for i in range(n)]
    yield "psum", gpus.over(lambda a: jax.lax.psum(a, AXIS), WHOLE), rows.sum(0)
    yield "pmax", gpus.over(lambda a: jax.lax.pmax(a, AXIS), WHOLE), rows.max(0)
    yield "pmin", gpus.over(lambda a: jax.lax.pmin(a, AXIS), WHOLE), rows.min(0)
    gathered = gpus.over(lambda a: jax.lax.all_gather(a, AXIS, tiled=True))
    yield "all_gather", gathered, np.tile(rows.ravel(), n)
    passed_on = gpus.over(lambda a: jax.lax.ppermute(a, AXIS, in_turn))
    yield "ppermute", passed_on, np.roll(rows, 1, 0).ravel()
    if rows.shape[1] % n:
        return
    scattered = gpus.over(lambda a: jax.lax.psum_scatter(a, AXIS, tiled=True))
    yield "psum_scatter", scattered, rows.sum(0)
    exchanged = gpus.over(lambda a: jax.lax.all_to_all(a, AXIS, 0, 0, tiled=True))
    yield "all_to_all", exchanged, rows.reshape(n, n, -1).transpose(1, 0, 2).ravel()


def compare(gpus: Gpus) -> tuple[int, int]:
    """Results, and how many of them were wrong."""
    done = wrong = 0
    for dtype in TYPES:
        for count in COUNTS:
            numbers = (np.arange(gpus.size * count) % 61 - 30).astype(np.float32)
            part = gpus.cut(numbers, dtype)
            for name, call, want in cases(gpus, numbers.reshape(gpus.size, count)):
                bad = int(np.sum(np.asarray(call(part).astype(jnp.float32)) != want))
                done, wrong = done + 1, wrong + (bad > 0)
                print(f"{name} {np.dtype(dtype).name} {count}: {bad} elements wrong", flush=True)
    return done, wrong


def times(gpus: Gpus) -> dict[str, list[float]]:
    """Of one of CALLS sums, by size."""
    taken = {}
    for size, nbytes in TIMED.items():
        numbers = gpus.cut(np.ones(gpus.size * nbytes // 2, np.float32), jnp.bfloat16)
        call = gpus.over(functools.partial(jax.lax.psum, axis_name=AXIS), WHOLE)
        call(numbers).block_until_ready()
        us = []
        for _ in range(SAMPLES):
            began = time.perf_counter()
            for _ in range(CALLS):
                result = call(numbers)
            result.block_until_ready()
            us.append((time.perf_counter() - began) * 1e6 / CALLS)
        taken[f"psum {size}"] = us
    return taken


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", help="what was found; %%r is 0")
    args = parser.parse_args()
    gpus = Gpus()
    done, wrong = compare(gpus)
    told = {
        "what": f"JAX {jax.__version__}, {gpus.size} GPUs of one process",
        "device": jax.devices()[0].device_kind,
        "checked": done,
        "wrong": wrong,
        "raised": [],
        "times_us": times(gpus),
    }
    if args.out:
        Path(args.out.replace("%r", "0")).write_text(json.dumps(told), encoding="utf-8")
    return 1 if wrong or gpus.size < 2 else 0


if __name__ == "__main__":
    sys.exit(main())
