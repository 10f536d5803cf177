"""This machine: the kernel's files, what NVIDIA's driver adds, and hwloc where /sys is hidden."""

import platform
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

from braid.topo.check import checked
from braid.topo.errors import BadTopology
from braid.topo.facts import Gpu, Machine
from braid.topo.paths import with_paths
from braid.topo.pci_class import AMD, NVIDIA
from braid.topo.read import hwloc, nvml, sysfs
from braid.topo.read.tree import Tree

_HWLOC_SECONDS = 5.0


def read_tree(root: Path) -> Machine:
    """A copy of a machine's /sys and /proc; nothing else is asked."""
    tree = Tree(root)
    if not tree.exists("/sys"):
        raise BadTopology("the folder has no sys/ in it")
    return checked(with_paths(sysfs.read(tree)))


def read(root: Path = Path("/"), library: nvml.Library | None = None) -> Machine:
    """The machine that this runs on."""
    machine = sysfs.read(Tree(root))
    if not machine.pci:
        machine = _from_hwloc() or machine
    machine = replace(
        machine,
        source=replace(machine.source, format="live"),
        name=machine.name or platform.node(),
    )
    seen = _ask_nvml(machine, library or nvml.find_library())
    if any(gpu.pci and _vendor(machine, gpu.pci) == AMD for gpu in machine.gpus):
        machine.source.gaps.append(
            "amd: links between GPUs are not read live; save them with rocm-smi --showtopo"
        )
    machine = with_paths(_joined(machine, seen) if seen else machine)
    return checked(_with_driver_paths(machine, seen) if seen else machine)


def _vendor(machine: Machine, address: str) -> str:
    return next((device.vendor for device in machine.pci if device.address == address), "")


def _from_hwloc() -> Machine | None:
    program = shutil.which("lstopo-no-graphics") or shutil.which("lstopo")
    if program is None:
        return None
    try:
        done = subprocess.run(
            [program, "--of", "xml"], capture_output=True, timeout=_HWLOC_SECONDS, check=True
        )
        return hwloc.read(done.stdout.decode(errors="replace"))
    except (OSError, subprocess.SubprocessError, BadTopology):
        return None


def _ask_nvml(machine: Machine, library: nvml.Library | None) -> nvml.Seen | None:
    """What the driver says; a gap is only worth a word where there is an NVIDIA GPU."""
    has_gpu = any(device.vendor == NVIDIA and device.kind == "gpu" for device in machine.pci)
    if library is None:
        if has_gpu:
            machine.source.gaps.append("nvml: nvidia-ml-py is not installed")
        return None
    try:
        with nvml.opened(library) as opened:
            seen = nvml.Reader(opened).read()
            return seen if seen.gpus else None
    except library.NVMLError as error:
        if has_gpu:
            machine.source.gaps.append(f"nvml: {error}")
        return None


def _joined(machine: Machine, seen: nvml.Seen) -> Machine:
    """The driver's GPUs in place of those that the PCI class shows, joined by address."""
    by_address = {gpu.pci: gpu for gpu in machine.gpus}
    pcie = {gpu.pci: seen.pcie[gpu.name] for gpu in seen.gpus}
    cpus = {node.index: node.cpus for node in machine.numa}
    tools = {**machine.source.tools, "driver": seen.driver}
    known = {device.address for device in machine.pci}
    return replace(
        machine,
        source=replace(machine.source, tools=tools),
        gpus=[_placed(gpu, by_address.get(gpu.pci), cpus, known) for gpu in seen.gpus],
        gpu_links=seen.links,
        peers=seen.peers,
        pci=[
            replace(device, link=pcie[device.address])
            if device.address in pcie and pcie[device.address].width
            else device
            for device in machine.pci
        ],
    )


def _placed(gpu: Gpu, on_pci: Gpu | None, cpus: dict[int, str], known: set[str]) -> Gpu:
    numa = on_pci.numa if on_pci else None
    return replace(
        gpu,
        pci=gpu.pci if gpu.pci in known else None,
        numa=numa,
        cpus=cpus.get(numa, "") if numa is not None else "",
    )


def _with_driver_paths(machine: Machine, seen: nvml.Seen) -> Machine:
    """The driver's word on pairs of GPUs goes before ours: it may see what /sys hides."""
    told = {frozenset((path.a, path.b)) for path in seen.paths}
    ours = [path for path in machine.paths if frozenset((path.a, path.b)) not in told]
    return replace(machine, paths=[*seen.paths, *ours])
