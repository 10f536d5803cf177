"""Links between GPUs: missing, down, uneven, or point to point."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations

from braid.topo.facts import SWITCH, Gpu
from braid.topo.groups import Bundle, Links
from braid.topo.look import View
from braid.topo.tables import ASSUMED_NVLINK, links_of, model_known
from braid.topo.verdicts.verdict import Verdict, names

_TWO_MODELS = 18
"""Links that Hopper and Blackwell both have, of different rates."""


def links_down(view: View) -> Iterator[Verdict]:
    """Links that the GPU has and that do not work. Export models have links that never will."""
    for gpu in view.machine.gpus:
        down = max((link.inactive for link in view.links_of(gpu.name)), default=0)
        up, spec = view.num_links(gpu.name), links_of(gpu)
        if down and (spec is None or up < spec.links):
            yield Verdict(
                "nvlink-down",
                "warning",
                f"{gpu.name}: {down} of {up + down} NVLinks are down",
                [gpu.name],
                "reset the GPU; if it stays so: nvidia-smi nvlink -e, and the fabric manager",
            )


def links_missing(view: View) -> Iterator[Verdict]:
    """Fewer links than a GPU of this model has, where the machine has any."""
    for gpu in view.machine.gpus:
        spec, found = model_known(gpu.model), view.num_links(gpu.name)
        expected = spec.links if spec and spec.name.startswith("NVLink") else 0
        if 0 < found < expected and not (_is_bridged(view, gpu) or view.misses_links):
            text = f"{gpu.name}: {found} NVLinks; {gpu.model} has {expected}"
            yield Verdict(
                "nvlink-missing", "warning", text, [gpu.name], "look for links that are down"
            )


def _is_bridged(view: View, gpu: Gpu) -> bool:
    """PCIe cards with a bridge between two of them have as many links as the bridge."""
    return all(link.b != SWITCH for link in view.links_of(gpu.name))


def links_uneven(view: View) -> Iterator[Verdict]:
    """GPUs with fewer links than the others."""
    counts = {gpu.name: view.num_links(gpu.name) for gpu in view.machine.gpus}
    if len(set(counts.values())) <= 1 or view.misses_links:
        return
    usual = Counter(counts.values()).most_common(1)[0][0]
    usual = usual or max(counts.values())
    odd = [name for name, count in counts.items() if count != usual]
    text = ", ".join(f"{name} has {counts[name]}" for name in odd[:4])
    more = f" and {len(odd) - 4} more differ" if len(odd) > 4 else ""
    yield Verdict(
        "nvlink-uneven",
        "warning",
        f"uneven NVLinks: {text}{more}, the others have {usual};"
        " a collective goes at the slowest's rate",
        odd,
        "compare nvidia-smi nvlink -s of these GPUs",
    )


def mesh_partial(view: View) -> Iterator[Verdict]:
    """Some pairs have NVLink and some have not: then rings over links join all GPUs, or none do."""
    gpus = [gpu.name for gpu in view.machine.gpus]
    pairs = list(combinations(gpus, 2))
    bare = [pair for pair in pairs if not view.links_between(*pair)]
    if not bare or len(bare) == len(pairs) or view.misses_links:
        return
    a, b = bare[0]
    what = kind_name(view, gpus)
    count = f"{len(bare)} of {len(pairs)} GPU pairs have no {what}"
    where = f" ({a} to {b}{' and others' if len(bare) > 1 else ''})"
    if of_counts(view).group(gpus).is_joined:
        then = f"rings over {what} join all {len(gpus)}, what these pairs send each other does not"
    else:
        then = "a group across them runs at the PCIe rate"
    yield Verdict(
        "nvlink-partial",
        "warning",
        f"{count}{where}: {then}",
        sorted({name for pair in bare for name in pair}, key=gpus.index),
        f"keep tensor-parallel groups inside an {what} island",
    )


def kind_name(view: View, gpus: Sequence[str]) -> str:
    """What the links of these GPUs are called."""
    kinds = {link.kind for gpu in gpus for link in view.links_of(gpu)}
    return "xGMI" if kinds == {"xgmi"} else "NVLink"


def of_counts(view: View) -> Links:
    """The links between GPUs, by their number: rates are not always known."""
    found = [link for gpu in view.machine.gpus for link in view.links_of(gpu.name)]
    return Links(Bundle(link.a, link.b, link.count) for link in dict.fromkeys(found))


def small_groups(view: View) -> Iterator[Verdict]:
    """On point-to-point meshes a small group uses only the links between its own members."""
    gpus = view.machine.gpus
    if len(gpus) < 3 or any(view.switch_links(gpu.name) for gpu in gpus):
        return
    if any(not view.links_between(gpus[0].name, gpu.name) for gpu in gpus[1:]):
        return
    spec = links_of(gpus[0])
    pair = view.links_between(gpus[0].name, gpus[1].name)
    own = view.num_links(gpus[0].name)
    rate = f": {pair * spec.gbps_each:g} of {own * spec.gbps_each:g} GB/s" if spec else ""
    yield Verdict(
        "small-groups",
        "note",
        f"links are point to point: two GPUs use {pair} of {own} links{rate}",
        [],
        "use all GPUs of the machine in one group, or one GPU",
    )


def model_unknown(view: View) -> Iterator[Verdict]:
    """Rates of links rest on the model, which some sources do not tell and braid may not know."""
    blind = [g for g in view.machine.gpus if not links_of(g) and view.num_links(g.name)]
    if not blind:
        return
    devices = [gpu.name for gpu in blind]
    is_nvlink = view.links_of(devices[0])[0].kind == "nvlink"
    taken = "rates are left out"
    if is_nvlink:
        each = ASSUMED_NVLINK.gbps_each
        taken = f"{each:g} GB/s a link is assumed, as NVLink 2 to 4 have"
        if (most := max(map(view.num_links, devices))) == _TWO_MODELS:
            taken += f": {most * each:g} GB/s a GPU (Hopper); Blackwell has {2 * most * each:g}"
    if told := blind[0].model or (blind[0].arch if not is_nvlink else ""):
        text = f"{names(devices)}: the links of {told} are not known; {taken}"
        yield Verdict("model-unknown", "note", text, devices)
    else:
        text = f"{names(devices)}: the source does not tell the model; {taken}"
        example = "h100" if is_nvlink else "mi300x"
        yield Verdict("model-unknown", "note", text, devices, f"name it: --gpu {example}")


def cut_up(view: View) -> Iterator[Verdict]:
    """MIG instances have no peer access."""
    cut = [gpu.name for gpu in view.machine.gpus if gpu.mig]
    if cut:
        text = f"{names(cut)}: cut into MIG instances, which can use neither NVLink nor peer access"
        yield Verdict(
            "mig", "warning", text, cut, "nvidia-smi -mig 0, where collectives are to run"
        )


QUESTIONS = (
    links_down,
    links_missing,
    links_uneven,
    mesh_partial,
    cut_up,
    small_groups,
    model_unknown,
)
