"""Bandwidths of a run beside its bus bandwidth, made from what a record of any age holds."""

from dataclasses import replace

from braid.bench.wire import may_be_nvls, wire_gbps
from braid.record.gpu import GpuRecord, GpuResult, Run


def algbw_gbps(run: Run, result: GpuResult) -> float:
    """Size, as nccl-tests counts it, by time."""
    return result.total_bytes / run.median_us / 1e3 if run.median_us > 0 else 0.0


def wire_gbps_of(run: Run, result: GpuResult, record: GpuRecord) -> float:
    """What a GPU's links carried in one direction, at the least; below bus bandwidth where NVSwitch
    may have added.
    """
    nvls = may_be_nvls(result.op, record.ranks, run.who, record.options)
    return wire_gbps(result.op, record.ranks, run.busbw_gbps, nvls=nvls)


def is_least(run: Run, wire_gbps: float) -> bool:
    """Whether NVSwitch may have added, so that the links carried so much at the least."""
    return wire_gbps < run.busbw_gbps


def wire_text(run: Run, result: GpuResult, record: GpuRecord) -> str:
    """ "258.1", or ">=165.9" where it is not known whether NVSwitch added."""
    wire = wire_gbps_of(run, result, record)
    return f">={wire:.1f}" if is_least(run, wire) else f"{wire:.1f}"


def with_rates(record: GpuRecord) -> GpuRecord:
    """The same, with every run's bandwidths in it, for who reads the file without braid."""
    return replace(record, results=[_with_rates(result, record) for result in record.results])


def _with_rates(result: GpuResult, record: GpuRecord) -> GpuResult:
    runs = [
        replace(
            run,
            algbw_gbps=round(algbw_gbps(run, result), 3),
            wire_gbps=round(wire_gbps_of(run, result, record), 3),
        )
        for run in result.runs
    ]
    return replace(result, runs=runs)
