"""Links of GPUs in NCCL's topology: nvlink, xgmi and c2c elements below each GPU."""

from collections import Counter
from collections.abc import Iterator, Sequence

from braid.topo.facts import CPU, LINKS_NOT_TOLD, SWITCH, GpuLink, GpuLinkKind
from braid.topo.numbers import address, number, whole
from braid.topo.read.xml import Element

TAGS = ("nvlink", "xgmi", "c2c")
# NCCL's words for the far end: an NVSwitch, and the bridge of a POWER9 processor.
_SWITCH_CLASS, _CPU_CLASS = "0x0680", "0x068001"


def links(told: Sequence[tuple[str, Element]], names: dict[str, str]) -> list[GpuLink]:
    """Bundles; `told` are GPUs and elements, `names` the GPUs by address.

    A link between two GPUs stands under both, one to a GPU that is not in the file counts nowhere.
    """
    counts: Counter[tuple[str, str, GpuLinkKind]] = Counter()
    each: dict[tuple[str, str, GpuLinkKind], float | None] = {}
    for gpu, element in told:
        kind: GpuLinkKind = element.tag  # type: ignore[assignment]  # one of TAGS
        far = _far_end(element, names)
        if far is None or far == gpu:
            continue
        key = (gpu, far, kind)
        counts[key] += _count(element) or 0
        each[key] = (number(element.get("bw")) or 0.0) / 1000 or None if kind == "c2c" else None
    return [
        GpuLink(a, b, kind, count, each[a, b, kind])
        for (a, b, kind), count in counts.items()
        if count and not (counts.get((b, a, kind)) and b < a)
    ]


def gaps(told: Sequence[tuple[str, Element]]) -> Iterator[str]:
    """What is wrong with numbers of links: those links are left out."""
    wrong = [(gpu, element) for gpu, element in told if _count(element) is None]
    if wrong:
        gpu, element = wrong[0]
        more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        text = element.get("count")
        yield (
            f"{LINKS_NOT_TOLD}: {gpu}: {element.tag} count='{text:.20}' is no number of links{more}"
        )


def _count(link: Element) -> int | None:
    """None when it is no number."""
    count = whole(link.get("count"))
    return count if count is not None and count >= 0 else None


def _far_end(link: Element, names: dict[str, str]) -> str | None:
    if link.tag == "c2c" or link.get("tclass").startswith(_CPU_CLASS):
        return CPU
    if link.get("tclass").startswith(_SWITCH_CLASS):
        return SWITCH
    return names.get(address(link.get("target")) or "")
