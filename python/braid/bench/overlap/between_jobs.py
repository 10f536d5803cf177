"""Layers as jobs: every contestant checked on all ranks, then all timed in turn; the slowest rank
counts, and all ranks do the same.
"""

from collections.abc import Sequence

import numpy as np
import torch

import braid
from braid.bench.overlap.between import ALONE, BRAID, NCCL, Call, Layer, Rivals
from braid.bench.overlap.checked import MOST_ERROR, WARM, most_error_of_a_ring, series_of
from braid.overlap.shapes import Op
from braid.probe.effort import LEAST_SAMPLES, Effort, calls_for
from braid.probe.job import Job, Tick
from braid.record.probe import Series

_SLEEP_CYCLES = 1_000_000  # the host enqueues the first calls meanwhile


def job_of(comm: braid.Comm, layer: Layer, has_graphs: bool) -> Job:
    """`has_graphs`: every call is replayed from a CUDA graph, where it can be captured."""

    def run(effort: Effort, tick: Tick) -> list[Series]:
        field = Rivals(comm, layer)
        ways = field.contestants()
        errors, absent = _check(comm, field, ways)
        said = {BRAID: f"; {field.way()}"}
        able = {name: ways[name] for name in errors}
        if has_graphs:
            able = _captured(comm, able, absent)
        times = _race(comm, able, effort, tick)
        moved = layer.m * layer.k * 2
        found = [
            series_of(
                str(layer),
                name,
                moved,
                layer.flops,
                errors[name],
                times[name],
                said.get(name, ""),
                _most_error(name, layer),
            )
            for name in able
        ]
        del field, ways, able
        torch.cuda.empty_cache()
        return found + [
            Series(str(layer), name, 0, None, None, verdict="unsupported", note=why)
            for name, why in absent.items()
        ]

    return Job(str(layer), layer.m * layer.k * 2, run)


def _most_error(name: str, layer: Layer) -> float:
    is_ring_sum = name == NCCL and layer.op != Op.AG_GEMM
    return most_error_of_a_ring(layer.size) if is_ring_sum else MOST_ERROR


def _most(comm: braid.Comm, value: float) -> float:
    """Over the ranks."""
    return float(comm.all_reduce(np.array([float(value)]), "max")[0])


def _check(
    comm: braid.Comm, field: Rivals, ways: dict[str, Call]
) -> tuple[dict[str, float], dict[str, str]]:
    """Everyone's largest error, and who is missing: versions of torch may lack an operation, which
    they do on all ranks.
    """
    errors: dict[str, float] = {}
    absent: dict[str, str] = {}
    for name, call in ways.items():
        try:
            mine = field.error(name, call)
        except Exception as error:
            if not name.startswith("torch"):
                raise
            absent[name] = f"{type(error).__name__}: {str(error)[:200]}"
            continue
        errors[name] = _most(comm, mine if mine == mine else 1e9)
    return errors, absent


def _captured(comm: braid.Comm, ways: dict[str, Call], absent: dict[str, str]) -> dict[str, Call]:
    """The same as graphs; who cannot be captured is absent."""
    graphs: dict[str, Call] = {}
    for name, call in ways.items():
        graph = torch.cuda.CUDAGraph()
        call()
        torch.cuda.synchronize()
        comm.barrier()
        try:
            with torch.cuda.graph(graph):
                result = call()
        except Exception as error:
            absent[name] = f"no graph: {type(error).__name__}: {str(error)[:200]}"
            continue

        def replay(
            graph: torch.cuda.CUDAGraph = graph, result: torch.Tensor = result
        ) -> torch.Tensor:
            graph.replay()
            return result

        graphs[name] = replay
    return graphs


def _race(
    comm: braid.Comm, ways: dict[str, Call], effort: Effort, tick: Tick
) -> dict[str, list[float]]:
    """Rounds with everybody once, in an order that all ranks know."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for call in ways.values():
        for _ in range(WARM):
            call()
    counts = {name: calls_for(_most(comm, _time_us(comm, call, 2))) for name, call in ways.items()}
    end_s = effort.clock() + effort.share_s()
    for number in range(effort.samples):
        is_late = number >= LEAST_SAMPLES and effort.clock() >= end_s
        if _most(comm, is_late) or effort.stop():
            break
        for name in np.random.default_rng(number).permutation(list(ways)):
            times[name].append(_most(comm, _time_us(comm, ways[name], counts[name])))
        tick(number + 1)
    return times


def _time_us(comm: braid.Comm, call: Call, count: int) -> float:
    """Of one call among several in a row: all ranks begin them together."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    comm.barrier()
    torch.cuda._sleep(_SLEEP_CYCLES)
    begin.record()
    for _ in range(count):
        call()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e3 / count


def figures_of(series: Sequence[Series]) -> dict[str, float]:
    """E_overlap = 1 - ECT / ECT of the faster way in turn, where ECT is what a way takes beyond the
    GEMM alone; and the fastest other's time by braid's.
    """
    figures: dict[str, float] = {}
    for group in dict.fromkeys(each.group for each in series):
        us = {one.case: one.times.p50_us for one in series if one.group == group and one.times}
        in_turn = [value for name, value in us.items() if name.endswith("in turn")]
        if ALONE not in us or BRAID not in us or not in_turn:
            continue
        alone, first = us[ALONE], min(in_turn)
        figures[f"{group}: communication by GEMM"] = round((first - alone) / alone, 4)
        for name in (BRAID, "torch, fused"):
            if name in us and first > alone:
                e_overlap = 1 - (us[name] - alone) / (first - alone)
                figures[f"{group}: E_overlap of {name}"] = round(e_overlap, 4)
        others = [value for name, value in us.items() if name not in (ALONE, BRAID)]
        figures[f"{group}: best other by braid"] = round(min(others) / us[BRAID], 4)
    return figures
