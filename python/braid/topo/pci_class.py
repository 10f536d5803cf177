"""PCI class codes ("0x030200") as kinds of devices."""

from braid.topo.facts import PciKind

_KINDS: tuple[tuple[str, PciKind], ...] = (
    ("0x0604", "bridge"),
    ("0x0680", "nvswitch"),
    ("0x0300", "gpu"),
    ("0x0302", "gpu"),
    ("0x0380", "gpu"),
    ("0x1200", "gpu"),  # processing accelerators: AMD's MI300
    ("0x0207", "nic"),
    ("0x0200", "nic"),
    ("0x0280", "nic"),
    ("0x0108", "nvme"),
)
NVIDIA = "0x10de"
AMD = "0x1002"
AMAZON = "0x1d0f"
MELLANOX = "0x15b3"
SLINGSHOT = "0x17db"
"""Cray's, now HPE's: Ethernet by its class, with RDMA that is not RoCE."""
_NOBODY = ("", "0x0000", "0xffff")
"""What files written by hand have in place of a vendor."""


def kind_of(code: str, vendor: str = "") -> PciKind:
    """What the device is. A bridge of class 0680 is an NVSwitch only when NVIDIA made it."""
    for prefix, kind in _KINDS:
        if code.lower().startswith(prefix):
            return kind if kind != "nvswitch" or vendor.lower() == NVIDIA else "other"
    return "other"


def is_accelerator(code: str, vendor: str) -> bool:
    """Whether collectives could run on it: AMD's display adapters are left out, of which every
    processor with graphics has one.
    """
    code, vendor = code.lower(), vendor.lower()
    if vendor == AMD:
        return code.startswith(("0x0302", "0x0380", "0x1200"))
    return vendor == NVIDIA and kind_of(code, vendor) == "gpu"


def may_be_accelerator(code: str, vendor: str) -> bool:
    """is_accelerator() for a list of devices that somebody chose for collectives: what has no
    vendor there counts, and other makers' accelerators do; their display adapters do not.
    """
    if vendor.lower() in _NOBODY:
        return kind_of(code) == "gpu"
    if vendor.lower() in (NVIDIA, AMD):
        return is_accelerator(code, vendor)
    return kind_of(code) == "gpu" and not code.startswith("0x0300")
