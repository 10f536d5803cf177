"""Stand-ins for tests of the GPU benchmark on machines without one."""

from braid.bench.contestant import Contestant
from braid.bench.crew import Crew
from braid.record.gpu import SCHEMA, GpuRecord, GpuResult, Repeats, make_run
from braid.record.parts import Host


class Alone(Crew):
    """A crew of one that stands for `size` ranks: all of them do and find the same."""

    def __init__(self, size=1):
        self.rank, self.size = 0, size
        self.barriers = 0

    def barrier(self):
        self.barriers += 1

    def agree(self, *numbers):
        return list(numbers)

    def total(self, number):
        return number * self.size

    def slowest(self, times):
        return list(times)

    def every(self, number):
        return [number] * self.size

    def rows(self, times):
        return [list(times)] * self.size

    def least(self, number):
        return number

    def first_words(self, words):
        return " ".join(words.split())


class Runner(Contestant):
    """Counts its calls."""

    def __init__(self, name, group="braid", needs=None):
        self.name, self.group = name, group
        self.needs = needs or {}
        self.calls = 0

    def shelves(self, _case):
        return self.needs

    def prepare(self, case, data, rank):
        pass

    def run(self):
        self.calls += 1


def result(op, nbytes, mode="eager", host_share=None, wrong=0, **times):
    """A result whose contestants take so many microseconds; _ in a name stands for a blank."""
    families = {"nccl": "nccl", "nccl_symmetric": "nccl-best", "nccl_32_ctas": "nccl-best"}
    runs = []
    for key, time_us in times.items():
        default = "symm" if key.startswith("symm") else "braid"
        bad = wrong if key == "braid" else 0
        runs.append(
            make_run(
                key.replace("_", " "),
                families.get(key, default),
                [time_us] * 3,
                lambda t: 1e3 / t,
                bad,
            )
        )
    return GpuResult(op, nbytes, nbytes, "bfloat16", mode, 5, host_share, runs, {}, "packets")


def record(results, ranks=4, repeats=(), **changes):
    """A record that holds them."""
    fields = {
        "schema": SCHEMA, "command": "braid bench", "date": "2026-01-01T00:00:00+00:00",
        "commit": "abc", "dirty": False, "gpu": "NVIDIA H200", "driver": "580", "cuda": "13.0",
        "torch": "2.11.0", "nccl": "2.28.9", "braid": "0.1.0",
        "host": Host("cpu", 2, 1.0, "6"), "ranks": ranks, "sizes": "per rank", "settings": {},
        "options": {}, "results": list(results), "repeats": list(repeats),
    }  # fmt: skip
    return GpuRecord(**{**fields, **changes})


def repeats(calls=1000, different=0):
    """What comparing repeated sums found."""
    return Repeats("sum", calls, different)
