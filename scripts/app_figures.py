"""docs/results.md's lines about programs on GPUs and about what braid costs, from the records.

Used by make_figures.py and make_recipe_docs.py.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from record_notes import RECORDS, link, load

from braid import noise
from braid.ratio import Interval, interval, interval_words, ratio_words, verdict
from braid.record.probe import ProbeRecord, Series, from_json

APART = {"apps"}
"""Kinds whose programs run once by each library, one after the other. Others take turns."""
PROGRAMS = (
    ("FSDP2, a GPT of {parameters} parameters: a step", "fsdp2_2.json", "step"),
    ("the same", "fsdp2_4.json", "step"),
    ("FSDP2, a GPT of {parameters} parameters: a step", "fsdp2_big_2.json", "step"),
    ("Llama-3 8B's layers, tensor parallel: prefill of 2048 tokens", "tp_2.json", "prefill"),
    ("the same: decode of 8 sequences", "tp_2.json", "decode"),
    ("the same: decode in a CUDA graph", "tp_2.json", "decode, graph"),
    ("DeepSpeed ZeRO 2: a step", "apps_2.json", "DeepSpeed, ZeRO 2: step"),
    ("DeepSpeed ZeRO 3: a step", "apps_2.json", "DeepSpeed, ZeRO 3: step"),
    ("Megatron, tensor parallel: a step", "apps_2.json", "Megatron-Core, tensor parallel: step"),
    ("Megatron, data parallel: a step", "apps_2.json", "Megatron-Core, data parallel: step"),
    ("JAX, psum of 16 MiB, alone", "apps_threads_2.json", "JAX: psum 16 MiB"),
)  # fmt: skip


@dataclass(frozen=True)
class Pair:
    """The same work by braid and by another library."""

    ours: Series
    theirs: Series
    is_apart: bool
    """Measured one after the other, not in turn."""

    @property
    def ratio(self) -> float:
        """Of the other's median to braid's."""
        (ours, theirs) = (one.times for one in (self.ours, self.theirs) if one.times)
        return theirs.p50_us / ours.p50_us

    @property
    def span(self) -> Interval | None:
        """Where it lies with 95 % confidence."""
        (ours, theirs) = (one.times for one in (self.ours, self.theirs) if one.times)
        return interval(theirs.samples_us, ours.samples_us)

    @property
    def verdict(self) -> str:
        """faster, equal, slower or unclear."""
        return verdict(self.ratio, self.span)

    @property
    def judged(self) -> str:
        """The ratio, its interval if there is one, and what it is called."""
        words = f"{self.ratio_words} {interval_words(self.span)}".strip()
        return f"{words}, {self.verdict}"

    @property
    def marks(self) -> str:
        """The number of samples, and how they were taken."""
        both = (one.times for one in (self.ours, self.theirs) if one.times)
        counts = sorted({len(each.samples_us) for each in both})
        apart = ", one after the other, NCCL first" if self.is_apart else ""
        return f"n={'/'.join(map(str, counts))}{apart}"

    @property
    def ratio_words(self) -> str:
        """With a mark where samples of either are noisy."""
        is_noisy = mark(self.ours) or mark(self.theirs)
        return ratio_words(self.ratio) + (noise.MARK if is_noisy else "")


def mark(series: Series) -> str:
    """Behind a median of noisy samples."""
    return noise.mark(series.times.samples_us) if series.times else ""


def pairs(record: ProbeRecord) -> Iterator[tuple[str, Pair]]:
    """What was timed by braid and by another, by group."""
    for what in dict.fromkeys(one.group for one in record.series):
        found = {one.case: one for one in record.series if one.group == what and one.times}
        ours = found.pop("braid", None)
        if ours is not None and found:  # else a program that did not come to its end
            yield what, Pair(ours, next(iter(found.values())), record.kind in APART)


def program_rows() -> Iterator[str]:
    """Lines of a Markdown table: program, GPUs, ratio and what it is called, samples, record."""
    for words, name, group in PROGRAMS:
        record = from_json(load(name))
        pair = dict(pairs(record))[group]
        parameters = record.figures.get("parameters", 0) / 1e9
        what = words.format(parameters=f"{parameters:.2g}e9")
        yield (
            f"| {what} | {record.ranks} | {pair.judged} |"
            f" {pair.marks} | {link(name, '../records')} |"
        )


def unrecorded() -> str:
    """What has no row, since nobody kept a record of it on GPUs; "" if there is nothing."""
    kinds = {load(path.name).get("kind") for path in RECORDS.glob("*.json")}
    return "" if "ddp-step" in kinds else "DDP was not recorded on GPUs, nor were servers."


def costs() -> Iterator[str]:
    """Lines of a list."""
    blocks = {ranks: load(f"flexlink_{ranks}.json")["blocks"] for ranks in (2, 4, 8)}

    def each(op: str) -> str:
        return ", ".join(str(blocks[ranks][op]) for ranks in blocks)

    sources = ", ".join(link(f"flexlink_{ranks}.json", "../records") for ranks in blocks)
    yield (
        f"- Multiprocessors: of 256 MiB on 2, 4 and 8 GPUs an all_gather takes at most"
        f" {each('all_gather')}, an all_reduce {each('all_reduce')} ({sources})."
    )
    source = "tuning_gpu_2.json"
    starts = [one for one in load(source)["starts"] if not one["beside"]]
    middle = median(one["seconds"] for one in starts)
    yield (
        f"- Start: a communicator's first call tunes: {middle:.1f} s on 2 GPUs (median of"
        f" {len(starts)}, {link(source, '../records')}), then from a file. It ends after"
        " `BRAID_TUNE_TIME` (8 s)."
    )
    yield (
        "- Memory: 0.8 to 0.9 GiB of every GPU for every communicator that is used"
        " ([sum of the options' defaults](nccl.md#what-a-comm-takes), not a measurement)."
    )
