"""The tables that ship with braid, to look at."""

from braid.plan import hardware, models, network, shipped
from braid.plan.basis import Basis, Quantity
from braid.plan.report import Report, Row


def machines() -> Report:
    """All nodes we know by name."""
    answer = Report("hw", "machines by name; GB/s per GPU and direction", {})
    for name in hardware.names():
        node = hardware.find(name)
        first = node.paths[0]
        cells = {
            "GPUs": Quantity(node.gpus_per_node, "", Basis.SPECIFIED, "per node"),
            "to all": first.specified(node.gpus_per_node),
            "to one": Quantity(first.pair_gbps, "GB/s", first.basis, first.origin),
            "usual": first.achievable(node.gpus_per_node),
            "peak": node.peak(),
            "memory": Quantity(node.memory_gb * 1e9, "B", Basis.SPECIFIED, "data sheet"),
        }
        measured = sum(not curve.lender for path in node.paths for curve in path.curves)
        note = f"{measured} measured curve{'s' * (measured != 1)}" if measured else ""
        answer.rows.append(Row(name, cells, f"{first.name}; {note}" if note else first.name))
    return answer


def machine(name: str) -> Report:
    """One node: its paths, and what was measured on it."""
    node = hardware.find(name)
    answer = Report("hw", f"{node.name}: {node.title}", {"hardware": node.name})
    answer.add("peak_tflops", "peak of one GPU, dense bf16", node.peak())
    for path in node.paths:
        key = path.name.replace("-", "_")
        answer.add(f"{key}.rate_gbps", f"{path.name}: one GPU to all", path.specified(8))
        pair = Quantity(path.pair_gbps, "GB/s", path.basis, path.origin)
        answer.add(f"{key}.pair_gbps", f"{path.name}: one GPU to one", pair)
        answer.add(f"{key}.achievable_gbps", f"{path.name}: usual", path.achievable(8))
        for curve in (each for each in path.curves if not each.lender):
            nbytes, us = curve.points[-1]
            cells = {
                "ranks": Quantity(curve.ranks, "", Basis.EXACT, ""),
                "points": Quantity(len(curve.points), "", Basis.EXACT, ""),
                "largest": Quantity(nbytes, "B", Basis.EXACT, ""),
                "time": Quantity(us, "us", Basis.MEASURED, curve.origin),
            }
            answer.rows.append(Row(f"{path.name} {curve.op}", cells, curve.origin))
    return answer


def links() -> Report:
    """All kinds of links."""
    answer = Report("hw", "links; GB/s of one GPU and direction", {})
    for name, row in shipped.table("links").items():
        gbps = hardware.link_gbps(name)
        origin = shipped.source(row["source"])
        cells = {
            "one direction": Quantity(gbps, "GB/s", Basis.SPECIFIED, origin),
            "both": Quantity(2 * gbps, "GB/s", Basis.SPECIFIED, origin),
        }
        if row["shape"] != "host":
            cells["links"] = Quantity(row["links"], "", Basis.SPECIFIED, origin)
        library = hardware.library_gbps(name)
        if library:
            source = shipped.source("nccl")
            cells["NCCL expects"] = Quantity(library, "GB/s", Basis.ASSUMED, source)
        title = f"{row['title']} ({row['gpu']})" if row["gpu"] else row["title"]
        answer.rows.append(Row(name, cells, f"{title}; {origin}"))
    return answer


def networks() -> Report:
    """NICs of whole nodes."""
    answer = Report("hw", "NICs of a node; GB/s per direction, all of them together", {})
    for name in network.names():
        row = shipped.table("networks")[name]
        origin = shipped.source(row["source"])
        found = network.find(name)
        cells = {
            "NICs": Quantity(row["nics"], "", Basis.SPECIFIED, origin),
            "each": Quantity(row["gbit"], "Gbit/s", Basis.SPECIFIED, origin),
            "node": Quantity(found.gbps, "GB/s", found.basis, origin),
            "GPU of 8": found.per_gpu(8),
        }
        answer.rows.append(Row(name, cells, f"{row['title']}; {origin}"))
    return answer


def models_table() -> Report:
    """All models we know by name."""
    answer = Report("models", "models by name", {})
    for name in models.names():
        model = models.find(name)
        cells = {
            "parameters": model.counted(model.parameters, "", model.origin),
            "active": model.counted(model.active_parameters, "", model.origin),
            "layers": Quantity(model.layers, "", Basis.EXACT, model.origin),
            "hidden": Quantity(model.hidden, "", Basis.EXACT, model.origin),
            "activation": Quantity(2 * model.hidden, "B", Basis.EXACT, "per token, bf16"),
            "KV cache": model.counted(2 * model.cache_elements_per_token, "B", "per token"),
        }
        answer.rows.append(Row(name, cells, model.origin))
    return answer
