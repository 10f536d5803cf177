"""What a demo proved, in one sentence: its last line. Pure."""

from braid.bench.verdict import judge, wrong_bytes
from braid.ratio import ratio_words
from braid.record.bench import Record
from braid.record.gpu import GpuRecord


def between_cpus(record: Record, possible: float, is_trained: bool | None) -> str:
    """`possible`: what the links' rates allow over the fastest alone. `is_trained`: whether a
    training ended well, all losses equal to the last bit; None: none was run.
    """
    wrong = sum(r.wrong_bytes + (r.baseline.wrong_bytes if r.baseline else 0)
                for r in record.results)  # fmt: skip
    checked = sum(result.checked_bytes for result in record.results)
    said = [f"{wrong:,} wrong bytes of {checked:,} in {len(record.results)} operations"]
    if ratios := [result.ratio for result in record.results if result.ratio is not None]:
        beyond = max(ratios) > possible
        said.append(
            f"all links together {_from_to(ratios)} as fast as the fastest alone, where their rates"
            f" allow {possible:.2f}x"
            + (" (above that the fastest alone fell behind its own rate)" if beyond else "")
        )
    if is_trained is not None:
        equal = "a training's losses equal to the last bit, however the links shared its sums"
        said.append(equal if is_trained else "the training FAILED")
    return _sentence(said, is_proven=not wrong and is_trained is not False)


def on_gpus(record: GpuRecord) -> str:
    """Beside the CPU's results, which were compared before: else there is no record."""
    wrong = wrong_bytes(record.results)
    judged = [judge(one) for one in record.results]
    ratios = [one.to_nccl for one in judged if one.to_nccl is not None]
    said = ["random sums had the CPU's bits"]
    said.append(f"{wrong:,} wrong bytes in {len(record.results)} cases")
    if ratios:
        words = [one.words("to_nccl") for one in judged]
        count = {word: words.count(word) for word in ("faster", "equal", "slower", "unclear")}
        counts = ", ".join(f"{n} {word}" for word, n in count.items() if n)
        said.append(
            f"{_from_to(ratios)} as fast as NCCL {record.nccl} by medians, with 95 % confidence"
            f" {counts}"
        )
    return _sentence(said, is_proven=not wrong)


def _from_to(ratios: list[float]) -> str:
    low, high = ratio_words(min(ratios)), ratio_words(max(ratios))
    return low if low == high else f"{low} to {high}"


def _sentence(said: list[str], *, is_proven: bool) -> str:
    return f"\n{'proven' if is_proven else 'NOT proven'}: {'; '.join(said)}."
