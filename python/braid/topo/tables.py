"""What links are specified to carry: data, with where it is from.

All rates are GB/s = 1e9 bytes per second, one direction. Data sheets mostly print both directions
together, and `nvidia-smi nvlink -s` the raw line rate, 6 % above what is payload; neither is here.
"""

import re
from dataclasses import dataclass

from braid.topo.facts import Gpu, GpuLinkKind


@dataclass(frozen=True)
class LinkSpec:
    """One generation of links between GPUs."""

    name: str
    gbps_each: float
    links: int
    """On a GPU that has them all."""
    nccl_gbps_each: float | None
    """What NCCL's own tables reckon with: after protocol, for kernels."""


# NVIDIA's data sheets; the last column is NCCL 2.28, src/graph/topo.h. Read 2026-08.
_NVLINK1 = LinkSpec("NVLink 1", 20.0, 4, 18.0)
_NVLINK2 = LinkSpec("NVLink 2", 25.0, 6, 20.0)
_NVLINK3 = LinkSpec("NVLink 3", 25.0, 12, 20.0)
_NVLINK3_BRIDGE = LinkSpec("NVLink 3", 14.0625, 4, 11.2)  # A40, A6000, RTX 3090: 112.5 duplex
_NVLINK4 = LinkSpec("NVLink 4", 25.0, 18, 20.6)
_NVLINK5 = LinkSpec("NVLink 5", 50.0, 18, 40.1)
_NVLINK6 = LinkSpec("NVLink 6", 50.0, 36, None)
# AMD's data sheets: 7 links, one to each peer.
_XGMI_MI250 = LinkSpec("xGMI", 50.0, 7, None)
_XGMI_MI300 = LinkSpec("xGMI", 64.0, 7, None)
_XGMI_MI350 = LinkSpec("xGMI", 76.5, 7, None)

_BY_ARCH: dict[str, LinkSpec] = {
    "sm_60": _NVLINK1,
    "sm_70": _NVLINK2,
    "sm_80": _NVLINK3,
    "sm_86": _NVLINK3_BRIDGE,
    "sm_90": _NVLINK4,
    "sm_100": _NVLINK5,
    "sm_103": _NVLINK5,
    "sm_107": _NVLINK6,
    "gfx90a": _XGMI_MI250,
    "gfx942": _XGMI_MI300,
    "gfx950": _XGMI_MI350,
}
# Export models have fewer links than their chip.
_BY_MODEL: tuple[tuple[str, LinkSpec], ...] = (
    (r"\bP100\b", _NVLINK1),
    (r"\bV100\b", _NVLINK2),
    (r"\bA800\b", LinkSpec("NVLink 3", 25.0, 8, 20.0)),
    (r"\bA100\b|\bA30\b", _NVLINK3),
    (r"\bA40\b|\bA6000\b|\b3090\b", _NVLINK3_BRIDGE),
    (r"\bH800\b", LinkSpec("NVLink 4", 25.0, 8, 20.6)),
    (r"\bG?H(20|100|200)\b", _NVLINK4),
    (r"\bG?B(100|200|300)\b", _NVLINK5),
    (r"\bMI2[15]0X?\b", _XGMI_MI250),
    (r"\bMI3(00|25)[XA]?\b", _XGMI_MI300),
    (r"\bMI35[05]X?\b", _XGMI_MI350),
)
# Without a name: NVLink 2, 3 and 4 all carry 25 a link. An NVLink 5 carries twice that.
ASSUMED_NVLINK = LinkSpec("NVLink", 25.0, 0, 20.0)


def model_known(model: str) -> LinkSpec | None:
    """The links of a GPU by its name: "NVIDIA H800", "h100"."""
    return next((spec for text, spec in _BY_MODEL if re.search(text, model, re.IGNORECASE)), None)


def links_of(gpu: Gpu) -> LinkSpec | None:
    """The links of a GPU by name, else by architecture; None when neither says."""
    return model_known(gpu.model) or _BY_ARCH.get(gpu.arch)


def spec_for(gpu: Gpu, kind: GpuLinkKind) -> LinkSpec | None:
    """links_of(), and for an unknown NVIDIA GPU what most generations carry."""
    return links_of(gpu) or (ASSUMED_NVLINK if kind == "nvlink" else None)


# The slot that a card's data sheet names, with 16 lanes: for sources that tell no PCIe.
_PCIE_OF_MODEL: tuple[tuple[str, int], ...] = (
    (r"\b[PV]100\b|\bT4\b", 3),
    (r"\bA(2|10|16|30|40|100|800|[456]000)\b|\bL(4|20|40S?)\b|\bRTX [34]0[89]0\b|\bMI2", 4),
    (r"\bH(20|100|200|800)\b|\bB[23]00\b|\bRTX (50[89]0|PRO)\b|\bMI3", 5),
)


def pcie_of_model(model: str) -> int | None:
    """The PCIe generation of a GPU by its name; None for one that is not known."""
    return next((gen for text, gen in _PCIE_OF_MODEL if re.search(text, model, re.I)), None)


# PCI Express base specifications: GT/s per lane -> generation, part of the bits that is payload.
_PCIE: tuple[tuple[float, int, float], ...] = (
    (2.5, 1, 8 / 10),
    (5.0, 2, 8 / 10),
    (8.0, 3, 128 / 130),
    (16.0, 4, 128 / 130),
    (32.0, 5, 128 / 130),
    (64.0, 6, 242 / 256),
    (128.0, 7, 242 / 256),
)


def pcie_generation(gts: float) -> int | None:
    """5 for 32 GT/s; None for a speed that is no generation's."""
    return next((generation for speed, generation, _ in _PCIE if speed == gts), None)


def pcie_speed(generation: int) -> float:
    """32 GT/s for 5; 0 for an unknown generation."""
    return next((speed for speed, known, _ in _PCIE if known == generation), 0.0)


def pcie_gbps(gts: float, width: int) -> float | None:
    """A link's rate: 63.0 for 32 GT/s on 16 lanes. None when speed or width is not told."""
    coding = next((coding for speed, _, coding in _PCIE if speed == gts), None)
    return gts * width * coding / 8 if coding is not None and width > 0 else None


def socket_gbps(arch: str, vendor: str, model: int | None) -> float | None:
    """What NCCL reckons with between two sockets (src/graph/topo.h); None for a CPU it does not
    know.
    """
    if vendor == "AuthenticAMD":
        return 16.0
    if arch == "arm64" or arch == "aarch64":
        return 6.0
    if arch == "ppc64":
        return 32.0
    if vendor == "GenuineIntel" and model is not None:
        # Broadwell and before, Skylake to Ice Lake, Sapphire Rapids, later ones.
        return 6.0 if model < 0x55 else 10.0 if model < 0x8F else 22.0 if model == 0x8F else 40.0
    return None
