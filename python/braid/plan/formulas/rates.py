"""Rates: of bits and bytes, of links and lanes, of specifications and what is reached of them."""

from braid.plan.shipped import constant

ACHIEVABLE = constant("achievable")
"""Of a specified rate, large messages reach 80 to 90 %; F14 plans with the lower end."""

HOST_STAGED = constant("host_staged")
"""Of a GPU's PCIe rate, NCCL reaches this through host memory."""

_DUPLEX_BAND = (constant("duplex_low"), constant("duplex_high"))


def gbps_of_gbit(gbit: float) -> float:
    """F1: bytes for bits."""
    return gbit / 8


def part_of(measured_gbps: float, specified_gbps: float) -> float:
    """What part of a specified rate was measured."""
    return measured_gbps / specified_gbps


def looks_duplex(measured_gbps: float, specified_gbps: float) -> bool:
    """F2: a measurement near 40 % of the figure says that the figure counts both directions."""
    low, high = _DUPLEX_BAND
    return low <= part_of(measured_gbps, specified_gbps) <= high


def achievable_gbps(specified_gbps: float, part: float = ACHIEVABLE) -> float:
    """F14: what large messages will see of a specified rate."""
    return specified_gbps * part


def links_gbps(lane_gbps: float, lanes: int, links: int) -> float:
    """One direction of a GPU's bonded links."""
    return lane_gbps * lanes * links


def payload_gbps(line_gbps: float) -> float:
    """Payload of NVLink's raw line rate, which is what `nvidia-smi nvlink -s` prints."""
    return line_gbps * 16 / 17


def pcie_gbps(gt_per_s: float, payload: int, frame: int, lanes: int) -> float:
    """One direction of a PCIe slot; `payload` of every `frame` bits are data."""
    return gt_per_s * payload / frame * lanes / 8


def node_gbps(nics: int, nic_gbit: float) -> float:
    """What all NICs of a node carry in one direction."""
    return gbps_of_gbit(nics * nic_gbit)


def gpu_gbps(nics: int, nic_gbit: float, gpus: int) -> float:
    """One GPU's part of its node's NICs."""
    return node_gbps(nics, nic_gbit) / gpus


def mesh_gbps(pair_gbps: float, ranks: int) -> float:
    """What a GPU reaches inside a group where every pair has its own link.

    A group that leaves GPUs out leaves their links idle: two GPUs of eight have one link of seven.
    """
    return pair_gbps * (ranks - 1)


def bisection_gbps(gpus: int, gpu_gbps: float) -> float:
    """Both directions between two halves of a non-blocking switched node."""
    return gpus / 2 * gpu_gbps * 2


def seconds(nbytes: float, rate_gbps: float) -> float:
    """Time of bytes at a rate."""
    return nbytes / (rate_gbps * 1e9)


def gbps(nbytes: float, time_s: float) -> float:
    """Rate of bytes in a time."""
    return nbytes / time_s / 1e9
