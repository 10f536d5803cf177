"""What nccl-tests writes with -J, since version 2.17."""

from braid.saved.table import IN, OUT, Cell, Row, Table
from braid.typed_json import Json

_PLACES = {"out_of_place": OUT, "in_place": IN}
_KEPT = ("NCCL_", "CUDA_")


def read(document: Json) -> Table:
    """The table. ValueError when it is damaged."""
    try:
        return _table(document)
    except (KeyError, TypeError, AttributeError, IndexError, OverflowError) as error:
        raise ValueError(f"not a whole record of nccl-tests: {error!r:.100}") from error


def _table(document: Json) -> Table:
    config, code = document["config"], int(document["nccl_version"])
    arguments = [str(one) for one in document["args"]]
    table = Table(
        program=arguments[0].rpartition("/")[2],
        command=" ".join(arguments),
        nccl=f"{code // 10000}.{code // 100 % 100}.{code % 100}",
        is_graph=int(config["graph"]) > 0,
        settings={"warmup": str(config["warmup_iters"]), "iters": str(int(config["iterations"]))},
        options=dict(
            one.split("=", 1) for one in document["env"] if one.startswith(_KEPT) and "=" in one
        ),
        devices=[(str(one["hostname"]), str(one["device_info"])) for one in document["devices"]],
        rows=[_row(row) for row in document["results"]],
    )
    if "out_of_bounds" in document:
        table.failed = int(document["out_of_bounds"]["count"])
        table.average_gbps = float(document["average_bus_bandwidth"]["bandwidth"])
    return table


def _row(row: Json) -> Row:
    cells = {who: _cell(row[place]) for place, who in _PLACES.items() if row.get(place)}
    nbytes = int(row["size"])
    if not cells or not 0 <= nbytes <= 1 << 60:
        raise ValueError(f"{nbytes} bytes: no times")
    return Row(nbytes, str(row["type"]), str(row["redop"]), int(row["root"]), cells)


def _cell(half: Json) -> Cell:
    us = float(half["time"])
    if not 0 < us < 1e15:
        raise ValueError(f"{us:g} us")
    wrong = half["nwrong"]
    return Cell(
        us, float(half["alg_bw"]), float(half["bus_bw"]), None if wrong is None else int(wrong)
    )
