"""What a case between CPUs needs, and what there is."""

import tracemalloc

import numpy as np
import pytest

from braid.bench.host import memory
from braid.cases.host import Buffers, Case
from braid.cases.operations import OPS


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_a_case_takes_no_more_than_is_asked_for(op, ranks):
    """Counted by what Python and NumPy allocate, but for the pattern's own period."""
    period_bytes = 24 << 20
    nbytes = 64 << 20
    unit = 4 * (1 if op in ("all_reduce", "broadcast") else ranks)
    case = Case(op, nbytes // unit, np.dtype("float32"), "sum", ranks - 1, ranks)
    tracemalloc.start()
    buffers = Buffers(case)
    buffers.out[:] = buffers.expected
    assert buffers.wrong_bytes() == 0
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    needed = memory.needed_bytes(op, nbytes, "float32", ranks)
    assert peak <= needed + period_bytes
    assert peak > needed / 2


def test_a_container_may_have_less_than_the_machine(tmp_path):
    (tmp_path / "meminfo").write_text("MemTotal: 99 kB\nMemAvailable:   4096 kB\n")
    assert memory.free_bytes(tmp_path, tmp_path) == 4 << 20
    (tmp_path / "memory.max").write_text("3145728\n")
    (tmp_path / "memory.current").write_text("1048576\n")
    assert memory.free_bytes(tmp_path, tmp_path) == 2 << 20
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.free_bytes(tmp_path, tmp_path) == 4 << 20
    assert memory.free_bytes(tmp_path / "nowhere", tmp_path / "nowhere") > 1 << 60


def test_an_address_space_that_is_limited_counts_for_each_rank(monkeypatch):
    monkeypatch.setattr(memory, "free_bytes", lambda: 1 << 40)
    monkeypatch.setattr(memory, "_address_limit", lambda: 1 << 30)
    said = memory.why_not("all_reduce", 1 << 30, "float32", 2)
    assert said == "all_reduce of 1 GiB needs 4 GiB of every rank, ulimit -v is 1 GiB"
    monkeypatch.setattr(memory, "_address_limit", lambda: None)
    assert memory.why_not("all_reduce", 1 << 30, "float32", 2) == ""
