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


def kind_of(code: str, vendor: str = "") -> PciKind:
    """What the device is. A bridge of class 0680 is an NVSwitch only when NVIDIA made it."""
    for prefix, kind in _KINDS:
        if code.lower().startswith(prefix):
            return kind if kind != "nvswitch" or vendor == NVIDIA else "other"
    return "other"


def is_accelerator(code: str, vendor: str) -> bool:
    """Whether collectives could run on it: AMD's display adapters are left out, of which every
    processor with graphics has one.
    """
    if vendor == AMD:
        return code.startswith(("0x0302", "0x0380", "0x1200"))
    return vendor == NVIDIA and kind_of(code, vendor) == "gpu"
