"""One collective, every way it can be done; and one message against many."""

from collections.abc import Sequence

from braid.plan.basis import Basis, Quantity
from braid.plan.formulas import collectives, messages
from braid.plan.hardware import Path
from braid.plan.network import Network
from braid.plan.predict import Prediction, Request, predict
from braid.plan.report import Report, Row
from braid.plan.wrong import above_zero, at_least


def report(
    request: Request, path: Path, network: Network | None, algorithms: Sequence[str]
) -> Report:
    """A row per algorithm."""
    request.check()
    answer = Report(
        "collective",
        f"{request.op} of {request.nbytes:,.0f} B, {request.all_ranks} ranks, {path.name}",
        {
            "op": request.op,
            "bytes": request.nbytes,
            "ranks": request.ranks,
            "nodes": request.nodes,
            "path": path.name,
        },
    )
    factor = collectives.bus_factor(request.op, request.all_ranks)
    answer.exact("bus_factor", "bus factor", factor, "", "busbw = algbw x this")
    rate = path.specified(request.ranks)
    if rate.value:
        answer.add("rate_gbps", "specified rate of a GPU in this group", rate)
    for algorithm in algorithms:
        found = predict(request, path, network, algorithm)
        answer.rows.append(_row(algorithm, found))
        answer.notes += found.remark()
    answer.notes += _unused(request, path)
    answer.notes += _past_the_links(request, path)
    return answer


def _past_the_links(request: Request, path: Path) -> list[str]:
    """Of NVLS among four GPUs and more: among fewer a ring moves no more than it."""
    if request.op != "all_reduce" or not path.nvls_part or request.ranks < 2:
        return []
    saving = collectives.nvls_saving(request.ranks)
    if saving <= 1:
        return []
    return [
        "where NVSwitch adds (NVLS), bus bandwidth may pass the links' rate:"
        f" a ring moves {saving:.3f} times as much"
    ]


def _unused(request: Request, path: Path) -> list[str]:
    """Times over nodes that a record has, and this question is not about."""
    over = {(c.nodes, c.ranks) for c in path.curves if c.op == request.op and c.nodes > 1}
    return [
        f"not used: times of {nodes} nodes with {ranks} rank{'s' * (ranks != 1)} each"
        for nodes, ranks in sorted(over - {(request.nodes, request.ranks)})
    ]


def algorithms_for(request: Request, path: Path, network: Network | None = None) -> list[str]:
    """Those that this operation, path and network have; what a library would take comes first."""
    if not path.rate_gbps:  # a record of a machine that no table has: its times alone
        return ["auto"]
    if request.nodes > 1:
        if request.op not in collectives.OVER_NODES:
            return ["auto"]
        found = ["auto", "ring", "tree", "direct"]
        found += ["nvls"] if path.nvls_part and request.ranks > 1 else []
        return [*found, "sharp"] if network and network.adds else found
    if request.op in ("all_to_all", "send"):
        return ["auto", "direct"]
    found = ["auto", "ring", "tree", "direct"]
    if path.links and not path.is_mesh(request.ranks):
        found.remove("direct")
    return [*found, "nvls"] if path.nvls_part and request.op == "all_reduce" else found


def _row(asked: str, found: Prediction) -> Row:
    request, time = found.request, found.time_us
    cells = {}
    if found.legs:
        cells = _legs(found)
    elif found.algorithm in collectives.ALGORITHMS:
        wire = collectives.wire_bytes(
            request.op, found.algorithm, request.all_ranks, request.nbytes
        )
        steps = collectives.steps(request.op, found.algorithm, request.all_ranks)
        cells["wire"] = Quantity(wire, "B", Basis.EXACT, "per GPU and direction")
        cells["steps"] = Quantity(steps, "", Basis.EXACT, "one after the other")
    cells["least"] = found.least_us
    cells["likely"] = time
    if found.most_us:
        cells["most"] = found.most_us
    cells["algbw"] = Quantity(found.algbw_gbps, "GB/s", time.basis, "")
    cells["busbw"] = Quantity(found.busbw_gbps, "GB/s", time.basis, "")
    name = asked if asked == found.algorithm else f"{asked} ({found.algorithm})"
    return Row(name, cells, time.origin)


def _legs(found: Prediction) -> dict[str, Quantity]:
    """Of several nodes: what each half carries, and how often its latency is waited for."""
    inside, outside = found.legs
    why = "per GPU and direction"
    return {
        "inside": Quantity(inside.nbytes, "B", Basis.EXACT, f"{inside.way}; {why}"),
        "NIC": Quantity(outside.nbytes, "B", Basis.EXACT, f"{outside.way}; {why}"),
        "inside steps": Quantity(inside.steps, "", Basis.EXACT, inside.way),
        "NIC steps": Quantity(outside.steps, "", Basis.EXACT, outside.way),
        "inside least": inside.least_us,
        "NIC least": outside.least_us,
    }


def buckets(total_bytes: float, sizes: Sequence[int], ranks: int, path: Path) -> Report:
    """F21: the same bytes in all-reduces of different sizes."""
    above_zero("--total", total_bytes)
    at_least("--ranks", ranks, 2)
    answer = Report(
        "buckets",
        f"all_reduce of {total_bytes:,.0f} B in buckets, {ranks} ranks, {path.name}",
        {"bytes": total_bytes, "ranks": ranks, "path": path.name},
    )
    times = []
    for size in sizes:
        above_zero("--sizes", size)
        one = predict(Request("all_reduce", size, ranks), path).time_us
        total = messages.buckets_us(total_bytes, size, one.value)
        times.append(total)
        cells = {
            "bucket": Quantity(size, "B", Basis.EXACT, ""),
            "messages": Quantity(total_bytes / size, "", Basis.EXACT, ""),
            "each": one,
            "together": Quantity(total / 1e6, "s", one.basis, one.origin),
            "algbw": Quantity(collectives.algbw_gbps(total_bytes, total), "GB/s", one.basis, ""),
        }
        answer.rows.append(Row("", cells, one.origin))
    if len(times) > 1:
        answer.exact(
            "spread",
            "slowest by fastest",
            messages.speedup(max(times), min(times)),
            "",
            "the size of a message decides as much as the links",
        )
    return answer
