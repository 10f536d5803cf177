"""PCIe: narrow or slow links, redirected peers, pairs without a path."""

from collections.abc import Iterator

from braid.topo.facts import PciDevice
from braid.topo.look import View
from braid.topo.tables import pcie_generation
from braid.topo.verdicts.verdict import Verdict, names

_WATCHED = {"gpu", "nic", "switch", "nvme"}


def _owners(view: View) -> dict[str, str]:
    return {end.pci: end.name for end in reversed(view.machine.ends) if end.pci}


def _name(view: View, device: PciDevice) -> str:
    return _owners(view).get(device.address) or f"{device.kind} {device.address}"


def narrow_links(view: View) -> Iterator[Verdict]:
    """Fewer lanes than the device has. Lanes are trained once: this is no matter of load."""
    for device in view.machine.pci:
        link = device.link
        if device.kind in _WATCHED and 0 < link.width < link.max_width:
            name = _name(view, device)
            yield Verdict(
                "pcie-width",
                "warning",
                f"{name}: PCIe x{link.width} of x{link.max_width}",
                [name],
                "reseat the card, try another slot, look at risers and bifurcation in the firmware",
            )


def slow_links(view: View) -> Iterator[Verdict]:
    """A lower speed than the device has. GPUs slow their links down while idle."""
    for device in view.machine.pci:
        link = device.link
        if device.kind in _WATCHED and 0 < link.gts < link.max_gts:
            name = _name(view, device)
            now, best = pcie_generation(link.gts), pcie_generation(link.max_gts)
            is_gpu = device.kind == "gpu"
            yield Verdict(
                "pcie-speed",
                "note" if is_gpu else "warning",
                f"{name}: PCIe generation {now} of {best}"
                + (", which may be an idle GPU's saving of power" if is_gpu else ""),
                [name],
                "look again during a transfer" if is_gpu else "look at the slot and the firmware",
            )


def _bridges(view: View) -> dict[str, PciDevice]:
    """Those above GPUs and NICs, by address; none where no two devices could be peers."""
    ends = [end.pci for end in view.machine.ends if end.pci]
    if not view.machine.gpus and len(ends) < 2:
        return {}
    return {d.address: d for end in ends for d in list(view.chain(end))[1:]}


def redirected_peers(view: View) -> Iterator[Verdict]:
    """Access control services on a bridge above a GPU or NIC."""
    on = [address for address, device in _bridges(view).items() if device.redirects_peers]
    more = f" and {len(on) - 1} more bridges" if len(on) > 1 else ""
    if on:
        yield Verdict(
            "acs",
            "warning",
            f"ACS redirects peer traffic to the CPU at {on[0]}{more}:"
            " transfers between peers are slow, hang or are wrong",
            sorted(on),
            "off in the firmware, or setpci -s BRIDGE ECAP_ACS+0x6.w=0000 after each boot",
        )


def unread_access_control(view: View) -> Iterator[Verdict]:
    """The kernel shows a bridge's access control to root alone; saved tables never tell it."""
    above = _bridges(view)
    could_tell = view.machine.source.format in ("live", "sysfs") and view.machine.gpus
    if could_tell and above and all(one.redirects_peers is None for one in above.values()):
        bridges = "the bridge" if len(above) == 1 else f"the {len(above)} bridges"
        yield Verdict(
            "acs-unknown",
            "note",
            f"ACS could not be read at {bridges} above GPUs and NICs: only root may;"
            " where it is on, transfers between peers are slow, hang or are wrong",
            sorted(above),
            "as root of the host: braid topo, or lspci -vvv | grep ACSCtl"
            " (ReqRedir+ or CmpltRedir+: it is on)",
        )


def translated_addresses(view: View) -> Iterator[Verdict]:
    """An IOMMU that translates."""
    if view.machine.iommu and view.machine.gpus:
        yield Verdict(
            "iommu",
            "note",
            "the IOMMU translates device addresses: peer and RDMA transfers may be slower",
            [],
            "iommu=pt on the kernel's command line, where the machine is not virtual",
        )


def missing_paths(view: View) -> Iterator[Verdict]:
    """Pairs of GPUs that the source says nothing about."""
    gpus = [gpu.name for gpu in view.machine.gpus]
    pairs = [(a, b) for i, a in enumerate(gpus) for b in gpus[i + 1 :]]
    lost = [p for p in pairs if view.path(*p) is None and not view.links_between(*p)]
    if lost:
        a, b = lost[0]
        more = f" and {len(lost) - 1} more pairs" if len(lost) > 1 else ""
        yield Verdict(
            "peer-path",
            "warning",
            f"no path is known between {a} and {b}{more}",
            sorted({name for pair in lost for name in pair}, key=gpus.index),
            "containers and virtual machines hide the PCIe tree; look on the host",
        )


def refused_peers(view: View) -> Iterator[Verdict]:
    """Pairs between which the driver allows no direct access."""
    refused = [p for p in view.machine.peers if p.read != "ok" or p.write != "ok"]
    if refused:
        first = refused[0]
        why = first.write if first.write != "ok" else first.read
        more = f" and {len(refused) - 1} more pairs" if len(refused) > 1 else ""
        yield Verdict(
            "no-p2p",
            "warning",
            f"no peer access between {first.a} and {first.b}{more} ({why}):"
            " data goes through the host",
            list(dict.fromkeys(name for pair in refused for name in (pair.a, pair.b))),
            "some GPU models have none; else look at ACS, the IOMMU and the driver's options",
        )


def unknown_nodes(view: View) -> Iterator[Verdict]:
    """GPUs whose NUMA node is not told, on a machine that has several."""
    blind = [gpu.name for gpu in view.machine.gpus if gpu.numa is None]
    if blind and len(view.machine.numa) > 1:
        text = f"{names(blind)}: the NUMA node is not told, so host memory may be on the far socket"
        yield Verdict("numa-unknown", "note", text, blind, "usual in virtual machines")


QUESTIONS = (
    narrow_links,
    slow_links,
    redirected_peers,
    unread_access_control,
    missing_paths,
    refused_peers,
    translated_addresses,
    unknown_nodes,
)
