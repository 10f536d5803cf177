"""One thing that is wrong with a machine, or worth knowing about it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

Level = Literal["warning", "note"]
"""A warning costs speed or correct results and can be mended; a note explains."""

_MOST_RUNS, _SHOWN_RUNS = 6, 3


@dataclass(frozen=True)
class Verdict:
    """One line. `code` is stable: scripts may look for it."""

    code: str
    level: Level
    text: str
    devices: list[str] = field(default_factory=list)
    fix: str = ""


def names(devices: Iterable[str]) -> str:
    """ "GPU0-3, GPU6, mlx5_0": runs of numbers as runs; of very many, the first."""
    out: list[list[str]] = []
    for device in devices:
        stem, number = _split(device)
        if out and number is not None:
            last_stem, last = _split(out[-1][-1])
            if last is not None and last_stem == stem and number == last + 1:
                out[-1].append(device)
                continue
        out.append([device])
    if len(out) > _MOST_RUNS:
        total = sum(len(run) for run in out)
        return ", ".join(_run(run) for run in out[:_SHOWN_RUNS]) + f", ... ({total} devices)"
    return ", ".join(_run(run) for run in out)


def _split(device: str) -> tuple[str, int | None]:
    stem = device.rstrip("0123456789")
    digits = device[len(stem) :]
    return stem, int(digits) if digits and len(digits) < 10 else None


def _run(run: Sequence[str]) -> str:
    if len(run) == 1:
        return run[0]
    joint = "-" if len(run) > 2 else ", "
    return f"{run[0]}{joint}{_split(run[-1])[1] if joint == '-' else run[-1]}"
