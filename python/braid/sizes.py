"""Sizes, rates and lists as the command line spells them."""

import difflib
import re

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_MOST_BYTES = (1 << 63) - 1  # what a length is held in everywhere
_MOST_SIZES = 4096  # of a range by steps: "8:1GiB:+8" would be 134 million cases
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([kmgt])(?:ib)?|b)?", re.IGNORECASE)
_TWO_MEANINGS = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt])b", re.IGNORECASE)


def parse_size(text: str) -> int:
    """ "64MiB", "64M", "1.5 GiB", "2T", "4096" in bytes. M means MiB; MB is refused, as options
    have it: `braid plan` takes it for a power of 1000.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        either = _TWO_MEANINGS.fullmatch(text.strip())
        if either:
            meant = f"{either[1]}{either[2].upper()}iB"
            raise ValueError(f"'{text}' has two meanings; write {meant} for powers of 1024")
        raise ValueError(f"'{text}' is no size; write 4096, 64KiB or 1.5GiB")
    unit = _UNITS[(match[2] or "").lower()]
    nbytes = int(float(match[1]) * unit) if "." in match[1] else int(match[1]) * unit
    if nbytes > _MOST_BYTES:
        raise ValueError(f"'{text}' is too large: sizes end below 2^63 bytes")
    return nbytes


def parse_sizes(text: str) -> list[int]:
    """A comma list of sizes and ranges FROM:TO:xFACTOR ("1KiB:64MiB:x4") or FROM:TO:+STEP
    ("1MiB:8MiB:+1MiB"), sorted, each once.
    """
    sizes: set[int] = set()
    for part in text.split(","):
        sizes.update(_range(part) if ":" in part else [parse_size(part)])
    return sorted(sizes)


def _range(text: str) -> list[int]:
    match = re.fullmatch(r"([^:]+):([^:]+):(?:x(\d+)|\+([^:]+))", text.strip())
    if match is None or (match[3] and int(match[3]) < 2):
        raise ValueError(
            f"'{text}' is no range; write FROM:TO:xFACTOR such as 1KiB:64MiB:x4, or"
            " FROM:TO:+STEP such as 1MiB:8MiB:+1MiB"
        )
    size, last = parse_size(match[1]), parse_size(match[2])
    if not 0 < size <= last:
        raise ValueError(f"'{text}' is no range; FROM must be above 0 and not above TO")
    if match[4]:
        return _steps(text, size, last, parse_size(match[4]))
    found = []
    while size <= last:
        found.append(size)
        size *= int(match[3])
    return found


def _steps(text: str, first: int, last: int, step: int) -> list[int]:
    if step < 1:
        raise ValueError(f"'{text}' is no range; STEP must be above 0")
    found = range(first, last + 1, step)
    if len(found) > _MOST_SIZES:
        raise ValueError(f"'{text}' are {len(found)} sizes; {_MOST_SIZES} are taken")
    return list(found)


def format_size(size: int) -> str:
    """ "64 MiB", "1.5 KiB", "12 B"."""
    for unit, scale in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= scale:
            return f"{size / scale:.4g} {unit}" if size % scale else f"{size // scale} {unit}"
    return f"{size} B"


def parse_words(text: str, allowed: tuple[str, ...], what: str) -> list[str]:
    """A comma list of words out of `allowed`; "all" means all of them."""
    words = list(allowed) if text == "all" else [word.strip() for word in text.split(",")]
    for word in words:
        if word not in allowed:
            near = difflib.get_close_matches(word, allowed, 1)
            meant = f"; did you mean {near[0]}?" if near else ""
            raise ValueError(f"'{word}' is no {what}; braid has {', '.join(allowed)}{meant}")
    return list(dict.fromkeys(words))
