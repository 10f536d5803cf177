"""Options that several commands of `braid plan` share, and what they mean."""

import json
import os
import re
from pathlib import Path
from typing import Annotated

import typer

from braid import sizes
from braid.plan import hardware, network, records, topology
from braid.plan.curve import Curve
from braid.plan.hardware import Hardware
from braid.plan.network import Network
from braid.plan.shipped import Json
from braid.plan.wrong import PlanError

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON (schema braid.plan/1).")]
ModelName = Annotated[
    str, typer.Option("--model", help="Name (see: braid plan models), or a config.json.")
]
HardwareName = Annotated[
    str,
    typer.Option(
        "--hw",
        help="Name (see: braid plan hw), a bench record (p2p and host, too), nccl-tests' table, or"
        " what topo reads.",
    ),
]
RecordFiles = Annotated[
    list[Path] | None,
    typer.Option(
        "--record", help="Bench record, or table of nccl-tests, whose times come first; repeatable."
    ),
]
Who = Annotated[str, typer.Option(help="Whose times of a record: nccl, braid, or a baseline.")]
PathName = Annotated[str, typer.Option("--path", help="nvlink, host-staged, ..., all or auto.")]
Algorithm = Annotated[str, typer.Option(help="auto, ring, tree, direct, nvls, sharp (nodes).")]
Nodes = Annotated[int, typer.Option(help="Nodes.")]
NetworkName = Annotated[str, typer.Option("--network", help="NICs by name (see: braid plan hw).")]
NicGbit = Annotated[float, typer.Option(help="NICs' rate in Gbit/s per direction.")]
NicPer = Annotated[str, typer.Option(help="Whose rate --nic-gbit is: gpu or node.")]
Mfu = Annotated[float, typer.Option(help="Part of the peak that the work reaches, 0 to 1.")]
PeakTflops = Annotated[
    float, typer.Option(help="Peak of one GPU in TFLOP/s, dense; 0 takes the table's.")
]

_COUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([kmbt]?)", re.IGNORECASE)
_SCALES = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}
_DECIMAL = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt])b", re.IGNORECASE)


def parse_count(text: str, option: str) -> float:
    """ "80B", "2e9", "70.5b": a count of parameters."""
    match = _COUNT.fullmatch(text.strip())
    if match:
        return float(match[1]) * _SCALES[match[2].lower()]
    try:
        return float(text)
    except ValueError:
        raise PlanError(f"{option}: '{text}' is no count; write 2e9, 80B or 1.5T") from None


def parse_bytes(text: str, option: str) -> int:
    """ "64MiB" (powers of 1024) or "8GB" (powers of 1000): data sheets use both."""
    decimal = _DECIMAL.fullmatch(text.strip())
    if decimal:
        scale = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}[decimal[2].lower()]
        return int(float(decimal[1]) * scale)
    try:
        return sizes.parse_size(text)
    except ValueError as error:
        raise PlanError(f"{option}: {error}, or 8GB for powers of 1000") from None


def machine(name: str, files: list[Path] | None, who: str, peak_tflops: float = 0.0) -> Hardware:
    """The hardware that --hw and --record describe."""
    is_file = name.endswith((".json", ".txt", ".log", ".xml")) or os.path.isfile(name)
    found = _from_file(Path(name), who) if is_file else hardware.find(name)
    for file in files or []:
        document = records.load(file)
        found = found.with_curves(curves(document, who, file))
    if peak_tflops:
        found = found.with_peak(peak_tflops)
    return found


def _from_file(path: Path, who: str) -> Hardware:
    from braid.plan import probes  # here, as most commands need none

    document = _document(path)
    if document["schema"] == topology.SCHEMA:
        return topology.machine(document, str(path))
    if document["schema"] == probes.SCHEMA:
        return probes.machine(document, str(path))
    return records.machine(document, curves(document, who, path), str(path))


def _document(path: Path) -> Json:
    """A record, a topology, or whatever else braid topo reads, as a topology."""
    try:
        return records.load(path)
    except PlanError as no_record:
        from braid.topo.document import document, to_json
        from braid.topo.errors import BadTopology
        from braid.topo.read import load

        try:
            return json.loads(to_json(document(load(path))))
        except BadTopology as no_topology:
            raise PlanError(str(no_topology if _is_xml(path) else no_record)) from no_topology


def _is_xml(path: Path) -> bool:
    """Whether a file looks like it. What cannot be read is none."""
    try:
        with path.open("rb") as file:
            return file.read(64).lstrip().startswith(b"<")
    except OSError:
        return False


def curves(document: Json, who: str, path: Path) -> list[Curve]:
    """A record's times of `who`. PlanError when it has none."""
    from braid.plan import probes

    if document["schema"] == probes.SCHEMA:
        raise PlanError(f"{path}: copies, no times of collectives; give it with --hw")
    found = records.curves(document, who, str(path))
    if not found:
        whose = ", ".join(records.contestants(document))
        raise PlanError(f"{path}: no times of '{who}'; the record has {whose}: choose with --who")
    return found


def nics(name: str, nic_gbit: float, nic_per: str, nodes: int) -> Network | None:
    """The network between nodes; None for one node."""
    found = network.choose(name, nic_gbit, nic_per)
    if nodes > 1 and found is None:
        raise PlanError(
            f"--nodes {nodes}: say what joins them: --network NAME,"
            " or --nic-gbit RATE with --nic-per gpu or node (they differ by the GPUs of a node)"
        )
    return found


def paths(found: Hardware, name: str, ranks: int) -> list[hardware.Path]:
    """The paths that --path names; of "all" those that join so many GPUs."""
    first = found.path("auto" if name == "all" else name, ranks)
    joining = [path for path in found.paths if path.joins(ranks)]
    return joining if name == "all" else [first]
