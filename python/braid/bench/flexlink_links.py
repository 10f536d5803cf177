"""FlexLink's figures of links: both together against each alone."""

from collections.abc import Iterator

from braid.bench import flexlink as suite
from braid.bench.figure import Row, find, row
from braid.bench.verdict import span_of
from braid.cases.operations import OPS
from braid.record.gpu import GpuRecord, GpuResult

# A PCIe link has an eighth of NVLink's rate. A "host link alone" that is nearly as fast as NVLink
# was not alone.
_LEAST_HOST_TIME = 2.0


def _times(result: GpuResult | None) -> tuple[float, float, float] | None:
    """Medians over both links, NVLink alone, the host link alone."""
    if result is None:
        return None
    runs = [result.run_of(who) for who in ("braid", "braid nvlink", "braid host")]
    if any(run is None or run.wrong for run in runs):
        return None
    both, nvlink, host = (run.median_us for run in runs if run)
    return (both, nvlink, host) if host > _LEAST_HOST_TIME * nvlink else None


def sums(record: GpuRecord) -> Iterator[Row]:
    """Both links together by the sum of the rates of each alone."""
    for op in OPS:
        times = _times(find(record, op, suite.LARGE, "eager"))
        aim = suite.SUM_AIMS[op]
        part = (1 / times[0]) / (1 / times[1] + 1 / times[2]) if times else None
        yield row(
            f"{op} 256 MiB: of the sum of both links, each alone in the same run",
            record.ranks,
            f">= {aim:.0%}",
            part,
            f"{part:.1%}" if part else "links were not measured alone",
            bool(part and part >= aim),
        )


def added(record: GpuRecord) -> Row:
    """What the host link adds to NVLink alone."""
    result = find(record, "all_gather", suite.LARGE, "eager")
    both, alone = (result.run_of(who) if result else None for who in ("braid", "braid nvlink"))
    gain = alone.median_us / both.median_us - 1 if both and alone else None
    aim = suite.ADDED_AIMS.get(record.ranks)
    return row(
        "all_gather 256 MiB: host link added to NVLink alone",
        record.ranks,
        f">= {aim:+.0%}" if aim else "no figure",
        gain,
        f"{gain:+.1%}" if gain is not None else "no links alone",
        gain is not None and gain >= (aim or 0),
        None if gain is None else 1 + gain,
        span_of(both, alone),
    )


def held(ranks: int, capped: GpuRecord | None) -> Iterator[Row]:
    """The same where NVLink is held to H800's rate."""
    for op in suite.CAPPED_OPS:
        aim = suite.CAPPED_AIMS[op].get(ranks)
        result = find(capped, op, suite.LARGE, "eager") if capped else None
        both = result.run_of("braid") if result else None
        alone = result.run_of("braid nvlink") if result else None
        gain = alone.median_us / both.median_us - 1 if both and alone else None
        yield row(
            f"{op} 256 MiB, NVLink HELD to H800's 147 GB/s: gain over it alone",
            ranks,
            f">= {aim:+.0%}" if aim else "no figure",
            gain,
            f"{gain:+.1%}" if gain is not None else "no run with BRAID_LINK_CAP",
            gain is not None and gain >= (aim or 0),
            None if gain is None else 1 + gain,
            span_of(both, alone),
        )
