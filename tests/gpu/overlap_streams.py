"""The kernels of braid.overlap on 2, 4 and 8 ranks that are streams of one GPU: every call's result
is, to the bit, what src/overlap/reference.cc says, whatever rank is late.

    python tests/gpu/overlap_streams.py                     1000 calls of each
    python tests/gpu/overlap_streams.py --json s.json       and a record

Each rank has streams, memory and blocks of its own; together the blocks leave some multiprocessors
free, for copies between two places of a GPU and for what delays ranks: before a call every rank
sleeps as long as chance has it. Inputs are integers, so each product is exact and its rounding is
not; the last two ranks' are large and differ in their signs alone, so a sum in another order has
other bits. Three sets of inputs take turns, and outputs are poisoned: nothing of an earlier call
can pass for this one's.
"""

import argparse
import datetime
import json
import os
import random
import sys
import time
from pathlib import Path

os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")  # streams that wait for each other

import torch

from braid import _braid
from braid.bench import facts

EXCHANGE_FORM = 2
FORMS_OF = {136: (0, 1, 2), 104: (3, 1)}
"""Rows of a shard, and the tiles they are cut into: across (3) is for one tile's rows at most."""
COLUMNS, DEPTH = 520, 16384  # so deep that blocks share tiles
SETS = 3
LARGE = 2.0**18
FREE_SMS = 20
LONGEST_SLEEP = 60_000  # cycles
TIMEOUT_NS = 10_000_000_000
FLAG_SPACE = 1 << 16


def integers(seed, *shape, scale=1.0):
    made = torch.Generator(device="cuda").manual_seed(seed)
    return (torch.randint(-3, 4, shape, generator=made, device="cuda") * scale).to(torch.bfloat16)


def rounded(x):
    return x.to(torch.bfloat16).float()


class Inputs:
    """Of all ranks, and what each must get."""

    def __init__(self, ranks, rows, seed):
        self.ranks = ranks
        self.x = [integers(seed + r, rows, DEPTH) for r in range(ranks)]
        self.whole = [integers(seed + 20 + r, ranks * rows, DEPTH) for r in range(ranks)]
        self.w = [integers(seed + 40 + r, COLUMNS, DEPTH) for r in range(ranks)]
        self.w[-2] *= LARGE
        self.whole[-1], self.w[-1] = self.whole[-2].clone(), -self.w[-2]
        self.bias = integers(seed + 60, COLUMNS, scale=64.0)
        exact = [x.double() @ w.double().t() for x, w in zip(self.whole, self.w, strict=True)]
        assert all(bool((e.float().double() == e).all()) for e in exact), "a product is not exact"
        products = [e.float() for e in exact]
        gathered = torch.cat(self.x).double()
        self.gathered = [
            ((gathered @ w.double().t()).float() + self.bias.float()).to(torch.bfloat16)
            for w in self.w
        ]
        shards = [self.summed(products, owner) for owner in range(ranks)]
        self.scattered = [s[owner * rows : (owner + 1) * rows] for owner, s in enumerate(shards)]
        self.reduced = torch.cat(self.scattered)
        self.exchanged = self.summed(products, None)
        backwards = torch.zeros_like(products[0])
        for product in reversed(products):
            backwards += rounded(product)
        backwards += self.bias.float()
        if ranks > 2:  # two terms have one order
            assert not torch.equal(backwards.to(torch.bfloat16), self.exchanged)
        assert not torch.equal(self.summed(products, 0), self.exchanged), "an own part's rounding"

    def summed(self, products, owner):
        """In the order of the ranks, in fp32; all parts rounded but the owner's."""
        total = torch.zeros_like(products[0])
        for r, product in enumerate(products):
            total += product if r == owner else rounded(product)
        return (total + self.bias.float()).to(torch.bfloat16)


class Rank:
    """Its streams and its memory."""

    def __init__(self, world, number):
        self.world, self.number = world, number
        self.stream, self.copies = torch.cuda.Stream(), torch.cuda.Stream()
        n = world.ranks
        self.window = torch.empty(n * world.rows, DEPTH, dtype=torch.bfloat16, device="cuda")
        room = {"dtype": torch.uint8, "device": "cuda"}
        self.parts = torch.empty(world.room, **room)
        self.outbox = torch.empty(world.room, **room)
        self.told = torch.zeros(FLAG_SPACE, dtype=torch.int64, device="cuda")
        self.arrived = torch.zeros(FLAG_SPACE, dtype=torch.int64, device="cuda")
        self.epochs = torch.zeros(FLAG_SPACE, dtype=torch.int64, device="cuda")
        self.epoch = torch.zeros(1, dtype=torch.int64, device="cuda")
        self.finished = torch.zeros(64, dtype=torch.int32, device="cuda")
        self.c = torch.empty(n * world.rows, COLUMNS, dtype=torch.bfloat16, device="cuda")
        self.wrong = torch.zeros((), dtype=torch.int64, device="cuda")
        self.done = torch.cuda.Event()
        self.sums = _braid.OverlapSums()
        self._sums = torch.empty(world.sums, **room)
        self._summed = torch.zeros(_braid.OVERLAP_SUM_FLAGS_BYTES, **room)
        self.sums.at, self.sums.told = self._sums.data_ptr(), self._summed.data_ptr()
        self._page = torch.zeros(128, dtype=torch.uint8).pin_memory()
        self._failed = torch.zeros(1, dtype=torch.int32, device="cuda")
        self.bounds = _braid.OverlapBounds()
        self.bounds.timeout_ns, self.bounds.rank = TIMEOUT_NS, number
        self.bounds.page, self.bounds.failed = self._page.data_ptr(), self._failed.data_ptr()

    def gave_up(self):
        return bool(self._page.view(torch.int32)[0] or self._failed.item())

    def gemm(self, op, inputs):
        gemm = _braid.OverlapGemm()
        gemm.dtype, gemm.is_kn = _braid.dtype_code("bfloat16"), False
        gemm.ranks, gemm.rank = self.world.ranks, self.number
        rows = self.world.rows
        gemm.shard_rows = self.world.ranks * rows if op == "exchange" else rows
        gemm.columns, gemm.depth = COLUMNS, DEPTH
        a = self.window if op == "gather" else inputs.whole[self.number]
        gemm.a, gemm.w = a.data_ptr(), inputs.w[self.number].data_ptr()
        gemm.bias = inputs.bias.data_ptr()
        return gemm


class World:
    def __init__(self, ranks, rows):
        self.ranks, self.rows, self.forms = ranks, rows, FORMS_OF[rows]
        self.kernels = _braid.OverlapKernels(0)
        sms = torch.cuda.get_device_properties(0).multi_processor_count
        self.blocks = (sms - FREE_SMS) // ranks // 2 * 2
        probe = _braid.OverlapGemm()
        probe.dtype, probe.ranks = _braid.dtype_code("bfloat16"), ranks
        probe.shard_rows, probe.columns, probe.depth = ranks * rows, COLUMNS, DEPTH
        choices = [self.choice(form) for form in (*self.forms, EXCHANGE_FORM)]
        self.room = 2 * ranks * max(_braid.overlap_part_bytes(probe, c) for c in choices)
        self.sums = max(_braid.overlap_sums_bytes(c) for c in choices)
        self.all = [Rank(self, r) for r in range(ranks)]
        self.inputs = [Inputs(ranks, rows, 1000 * (ranks + s)) for s in range(SETS)]
        self.epoch = 0
        torch.cuda.synchronize()

    def choice(self, form, batches=1, splits=True):
        choice = _braid.OverlapChoice()
        choice.form, choice.band, choice.num_blocks = form, 2, self.blocks
        choice.batches, choice.splits = batches, splits
        return choice


def sleep(rank, chance):
    if chance.random() < 0.5:
        with torch.cuda.stream(rank.stream):
            torch.cuda._sleep(chance.randrange(LONGEST_SLEEP))


def gather(world, inputs, choice):
    """Every rank pushes its rows to all, each behind it a flag."""
    choice.head, rows = 0, world.rows
    for rank in world.all:
        r = rank.number
        rank.copies.wait_stream(rank.stream)
        with torch.cuda.stream(rank.copies):
            for step in range(world.ranks):
                to = world.all[(r + step) % world.ranks]
                to.window[r * rows : (r + 1) * rows].copy_(inputs.x[r], non_blocking=True)
                to.arrived[r : r + 1].copy_(rank.epochs[:1], non_blocking=True)
        places = _braid.OverlapGathered()
        places.c, places.arrived, places.piece_rows = (
            rank.c.data_ptr(),
            rank.arrived.data_ptr(),
            rows,
        )
        places.sums = rank.sums
        world.kernels.gather(
            rank.gemm("gather", inputs), choice, places, rank.epoch.data_ptr(), rank.bounds,
            rank.stream.cuda_stream,
        )  # fmt: skip
        rank.stream.wait_stream(rank.copies)
    return inputs.gathered


def parted(world, rank, slots):
    places = _braid.OverlapParted()
    empty = [0] * (8 - world.ranks)
    places.parts = [each.parts.data_ptr() for each in world.all] + empty
    places.told = [each.told.data_ptr() for each in world.all] + empty
    places.c = [rank.c.data_ptr()] + [0] * 7
    places.num_c, places.is_whole, places.num_slots = 1, False, slots
    places.outbox, places.finished, places.sums = rank.outbox.data_ptr(), 0, rank.sums
    return places


def scatter(world, inputs, choice, by_engines=False, is_whole=False, slots=1):
    for rank in world.all:
        gemm, places = rank.gemm("scatter", inputs), parted(world, rank, slots)
        if is_whole:
            places.is_whole, places.num_c = True, world.ranks
            order = [(rank.number + i) % world.ranks for i in range(world.ranks)]
            places.c = [world.all[r].c.data_ptr() for r in order] + [0] * (8 - world.ranks)
        if by_engines:
            places.finished = rank.finished.data_ptr()
            rank.copies.wait_stream(rank.stream)
        world.kernels.scatter(
            gemm, choice, places, rank.epoch.data_ptr(), rank.bounds, rank.stream.cuda_stream
        )
        if by_engines:
            take(world, rank, gemm, choice)
            rank.stream.wait_stream(rank.copies)
    return [inputs.reduced] * world.ranks if is_whole else inputs.scattered


def take(world, rank, gemm, choice):
    """Batches of the outbox to their owners, as src/overlap/calls.cc does it."""
    part, flags = _braid.overlap_part_bytes(gemm, choice), _braid.overlap_flags_of_one(gemm, choice)
    of_half = part // flags
    for shard, counter, first, halves in _braid.overlap_pushes(gemm, choice):
        owner = world.all[shard]
        _braid.wait_value(
            0, rank.copies.cuda_stream, rank.finished.data_ptr() + 4 * counter, halves
        )
        begin, nbytes = first * of_half, halves * of_half
        to, box, flag = (
            rank.number * part + begin,
            shard * part + begin,
            rank.number * flags + first,
        )
        with torch.cuda.stream(rank.copies):
            owner.parts[to : to + nbytes].copy_(rank.outbox[box : box + nbytes], non_blocking=True)
            owner.told[flag : flag + halves].copy_(rank.epochs[:halves], non_blocking=True)


def exchange(world, inputs, choice, slots=1):
    choice.form = EXCHANGE_FORM
    for rank in world.all:
        places = parted(world, rank, slots)
        world.kernels.exchange(
            rank.gemm("exchange", inputs), choice, places, rank.epoch.data_ptr(), rank.bounds,
            rank.stream.cuda_stream,
        )  # fmt: skip
    return [inputs.exchanged] * world.ranks


WAYS = {
    "AG+GEMM": gather,
    "GEMM+RS by copy engines": lambda w, i, c: scatter(w, i, c, by_engines=True),
    "GEMM+RS by the kernel": scatter,
    "GEMM+AR": lambda w, i, c: scatter(w, i, c, is_whole=True),
    "GEMM+AR, whole parts": exchange,
}


def call(world, way, number, chance):
    """One call of all ranks, behind one of each of them; and its result compared, on the device."""
    inputs = world.inputs[chance.randrange(SETS)]
    form = world.forms[number % len(world.forms)]
    choice = world.choice(form, batches=1 + number % 3, splits=number % 8 < 6)
    world.epoch += 1
    for rank in world.all:
        for other in world.all:
            rank.stream.wait_event(other.done)
    for rank in world.all:
        sleep(rank, chance)
        with torch.cuda.stream(rank.stream):
            rank.epoch.fill_(world.epoch)
            rank.epochs.fill_(world.epoch)
            rank.finished.zero_()
            rank.c.fill_(float("nan"))
            rank.done.record()
    if "AR" in way:  # where others store, nothing is poisoned any more
        for rank in world.all:
            for other in world.all:
                rank.stream.wait_event(other.done)
    wanted = WAYS[way](world, inputs, choice)
    for rank in world.all:
        with torch.cuda.stream(rank.stream):
            rank.done.record()
    for rank in world.all:
        for other in world.all:
            rank.stream.wait_event(other.done)
        with torch.cuda.stream(rank.stream):
            right = wanted[rank.number]
            rank.wrong += (rank.c[: right.shape[0]] != right).sum()
            rank.done.record()


def run(world, way, calls, chance):
    begin = time.monotonic()
    for rank in world.all:
        rank.wrong.zero_()
    torch.cuda.synchronize()
    for number in range(calls):
        call(world, way, number, chance)
        if number % 50 == 49:
            torch.cuda.synchronize()
    torch.cuda.synchronize()
    return {
        "ranks": world.ranks,
        "rows": world.rows,
        "way": way,
        "calls": calls,
        "wrong_elements": sum(int(rank.wrong) for rank in world.all),
        "gave_up": sum(rank.gave_up() for rank in world.all),
        "blocks_of_a_rank": world.blocks,
        "seconds": round(time.monotonic() - begin, 2),
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--ranks", default="2,4,8")
    parser.add_argument("--commit", default="")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    torch.cuda.set_device(0)
    seed = int.from_bytes(os.urandom(4), "big")
    chance, rows = random.Random(seed), []
    worlds = [(int(n), rows) for n in asked.ranks.split(",") for rows in FORMS_OF]
    for ranks, shard_rows in worlds:
        world = World(ranks, shard_rows)
        for way in WAYS:
            rows.append(run(world, way, asked.calls, chance))
            row = rows[-1]
            print(
                f"{ranks} ranks, {shard_rows} rows, {way}: {row['calls']} calls in"
                f" {row['seconds']} s, {row['wrong_elements']} wrong, {row['gave_up']} gave up",
                flush=True,
            )
            if row["gave_up"]:
                break
        del world
    commit, dirty = facts.commit(asked.commit)
    record = {
        "schema": "braid.overlap_streams/1",
        "command": " ".join(["python", *sys.argv]),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit,
        "dirty": dirty,
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "shard": {"rows": list(FORMS_OF), "columns": COLUMNS, "depth": DEPTH},
        "seed": seed,
        "longest_delay_cycles": LONGEST_SLEEP,
        "rows": rows,
    }
    if asked.json:
        asked.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    failed = any(row["wrong_elements"] or row["gave_up"] for row in rows)
    print("overlap_streams:", "WRONG" if failed else "right")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
