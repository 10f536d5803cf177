"""How the blocks of normal GPU kernels go through rounds (src/moe/gpu/phase.cuh): orders of
blocks by seeds, ranks with few and with many of them, call behind call. Nothing is overwritten,
torn or stuck, and each planted fault is found.
"""

import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

HALVES = 2
Waits = Iterator[Callable[[], bool]]


class WrongError(Exception):
    pass


@dataclass
class Rank:
    number: int
    blocks: int
    phase: int = 0
    call: int = 0
    agreed: int = 0
    arrived: dict[tuple[str, int], int] = field(default_factory=lambda: defaultdict(int))
    settled: dict[tuple[str, int], int] = field(default_factory=lambda: defaultdict(int))
    flags: dict[tuple[int, int], int] = field(default_factory=lambda: defaultdict(int))
    acks: dict[tuple[int, int], int] = field(default_factory=lambda: defaultdict(int))
    slots: dict[tuple[int, int], dict[int, int]] = field(default_factory=lambda: defaultdict(dict))
    """By half and source: what each block of the source has put there, and who has not taken it."""
    untaken: dict[tuple[int, int], set[int]] = field(default_factory=lambda: defaultdict(set))


@dataclass(frozen=True)
class Plan:
    rounds: int
    is_combine: bool
    fault: str = ""


def roles_of(blocks: int, plan: Plan, ranks: int) -> tuple[int, int]:
    """How many blocks send, and how many take."""
    if plan.rounds == 1 or blocks == 1:
        return blocks, blocks
    if plan.is_combine:
        parts = 9 * ranks - 4
        wanted = (blocks * 4 * (ranks - 1) + parts // 2) // parts
    else:
        wanted = blocks * 3 // 8
    senders = min(max(wanted, 1), 32)
    return senders, blocks - senders


class Kernel:
    """One kernel of one rank: its blocks' roles and the steps that they count."""

    def __init__(self, ranks: list[Rank], rank: Rank, plan: Plan) -> None:
        self.ranks, self.rank, self.plan = ranks, rank, plan
        self.senders, self.takers = roles_of(rank.blocks, plan, len(ranks))

    def senders_of(self, rank: Rank, round_: int) -> int:
        is_begin = not self.plan.is_combine and round_ == 0
        return rank.blocks if is_begin else roles_of(rank.blocks, self.plan, len(self.ranks))[0]

    def arrive(self, kind: str, step: int, blocks: int, base: dict[tuple[str, int], int]) -> bool:
        key = (kind, 0 if self.plan.fault == "one count" else step % HALVES)
        self.rank.arrived[key] += 1
        turns = step + 1 if self.plan.fault == "one count" else step // HALVES + 1
        return self.rank.arrived[key] == base[key] + turns * blocks

    def settle(self, kind: str, steps: int, blocks: int, base: dict[tuple[str, int], int]) -> None:
        for parity in range(HALVES):
            turns = (steps + 1 - parity) // HALVES
            self.rank.settled[kind, parity] = base[kind, parity] + turns * blocks

    def send(self, block: int, phase: int) -> Waits:
        rank, half = self.rank, phase % HALVES
        if phase > HALVES and self.plan.fault != "no room":
            yield lambda: all(rank.acks[half, p.number] >= phase - HALVES for p in self.ranks)
        for peer in self.ranks:
            yield lambda: True
            if peer.untaken[half, rank.number]:
                raise WrongError(f"phase {phase} over what was not taken")
            peer.slots[half, rank.number][block] = phase

    def tell(self, phase: int) -> Waits:
        half = phase % HALVES
        for peer in self.ranks:
            yield lambda: True
            takers = roles_of(peer.blocks, self.plan, len(self.ranks))[1]
            peer.untaken[half, self.rank.number] = set(range(takers))
            peer.flags[half, self.rank.number] = phase

    def take(self, taker: int, phase: int, round_: int) -> None:
        half = phase % HALVES
        for source in self.ranks:
            slots = self.rank.slots[half, source.number]
            whole = self.senders_of(source, round_)
            if [slots.get(b) for b in range(whole)] != [phase] * whole:
                raise WrongError(f"phase {phase} of rank {source.number} is torn")
            self.rank.untaken[half, source.number].discard(taker)

    def await_flags(self, phase: int) -> Callable[[], bool]:
        half, rank = phase % HALVES, self.rank
        return lambda: all(rank.flags[half, s.number] >= phase for s in self.ranks)

    def block(self, block: int) -> Waits:
        rank, plan, rounds = self.rank, self.plan, self.plan.rounds
        base, begun, call = defaultdict(int, rank.settled), rank.phase + 1, rank.call + 1
        first = 0 if plan.is_combine else 1  # of a dispatch, begin has sent round 0
        if not plan.is_combine:
            begun, call = rank.phase, rank.call
        sends_any, taker = block < self.senders, block - (rank.blocks - self.takers)
        last = False
        for step in range(rounds + 1):
            takes, sends = taker >= 0 and step > 0, sends_any and first <= step < rounds
            phase = begun + step - 1
            if plan.is_combine and step == 1 and takes:
                yield self.await_flags(phase)
                if taker == 0:
                    rank.agreed = call
            if plan.is_combine and step == 1 and sends and not takes:
                yield lambda: rank.agreed >= call
            if sends:
                yield from self.send(block, phase + 1)
                if self.arrive("sent", step - first, self.senders, base) or plan.fault == "early":
                    yield from self.tell(phase + 1)
            if not takes:
                continue
            yield self.await_flags(phase)
            self.take(taker, phase, step - 1)
            yield lambda: True
            last = self.arrive("taken", step - 1, self.takers, base)
            if last:
                for peer in self.ranks:
                    yield lambda: True
                    peer.acks[phase % HALVES, rank.number] = phase
        if last:
            rank.phase, rank.call = begun + rounds - 1, call
            self.settle("sent", rounds - first, self.senders, base)
            self.settle("taken", rounds, self.takers, base)

    def begin(self, block: int) -> Waits:
        """A dispatch's first kernel: round 0, by all blocks."""
        rank, base = self.rank, defaultdict(int, self.rank.settled)
        phase, call = rank.phase + 1, rank.call + 1
        yield from self.send(block, phase)
        if self.arrive("sent", 0, rank.blocks, base):
            yield from self.tell(phase)
            rank.phase, rank.call = phase, call
            self.settle("sent", 1, rank.blocks, base)
        if block == 0:
            yield self.await_flags(phase)


def run(seed: int, plans: list[Plan], sizes: list[int]) -> None:
    """All ranks, each kernel behind the one before, blocks in any order."""
    chance = random.Random(seed)
    ranks = [Rank(n, blocks) for n, blocks in enumerate(sizes)]
    queues: list[list[tuple[Plan, bool]]] = [
        [(p, is_begin) for p in plans for is_begin in ([False] if p.is_combine else [True, False])]
        for _ in ranks
    ]
    alive: list[list[tuple[Waits, Callable[[], bool]]]] = [[] for _ in ranks]
    while any(queues) or any(alive):
        for rank, queue, blocks in zip(ranks, queues, alive, strict=True):
            if queue and not blocks:
                plan, is_begin = queue.pop(0)
                kernel = Kernel(ranks, rank, plan)
                make = kernel.begin if is_begin else kernel.block
                order = list(range(rank.blocks))
                chance.shuffle(order)
                blocks += [(make(b), lambda: True) for b in order]
        ready = [(blocks, i) for blocks in alive for i, (_, wait) in enumerate(blocks) if wait()]
        if not ready:
            raise WrongError("stuck")
        blocks, i = chance.choice(ready)
        walk, _ = blocks[i]
        step = next(walk, None)
        if step is None:
            del blocks[i]
        else:
            blocks[i] = walk, step


def random_case(seed: int, fault: str = "") -> tuple[list[Plan], list[int]]:
    chance = random.Random(-seed)
    plans = [
        Plan(chance.choice([1, 2, 3, 5, 6]), chance.random() < 0.5, fault)
        for _ in range(chance.randint(2, 5))
    ]
    return plans, [chance.choice([1, 2, 3, 4, 7]) for _ in range(chance.randint(1, 4))]


@pytest.mark.parametrize("seed", range(120))
def test_blocks_come_through_whatever_their_order(seed: int) -> None:
    run(seed, *random_case(seed))


@pytest.mark.parametrize("fault", ["no room", "one count", "early"])
def test_a_planted_fault_is_found(fault: str) -> None:
    found = 0
    for seed in range(40):
        try:
            run(seed, *random_case(seed, fault))
        except WrongError:
            found += 1
    assert found > 10
