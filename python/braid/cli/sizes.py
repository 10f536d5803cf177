"""Sizes, rates and lists as the command line spells them."""

import re

_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmg]?)(?:i?b)?", re.IGNORECASE)


def parse_size(text: str) -> int:
    """ "64MiB", "64M", "1.5 GiB", "4096" in bytes. M means MiB."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"'{text}' is no size; write 4096, 64KiB or 1.5GiB")
    return int(float(match[1]) * _UNITS[match[2].lower()])


def parse_sizes(text: str) -> list[int]:
    """A comma list of sizes and ranges FROM:TO:xFACTOR ("1KiB:64MiB:x4"), sorted, each once."""
    sizes: set[int] = set()
    for part in text.split(","):
        sizes.update(_range(part) if ":" in part else [parse_size(part)])
    return sorted(sizes)


def _range(text: str) -> list[int]:
    match = re.fullmatch(r"([^:]+):([^:]+):x(\d+)", text.strip())
    if match is None or int(match[3]) < 2:
        raise ValueError(f"'{text}' is no range; write FROM:TO:xFACTOR such as 1KiB:64MiB:x4")
    size, last = parse_size(match[1]), parse_size(match[2])
    if not 0 < size <= last:
        raise ValueError(f"'{text}' is no range; FROM must be above 0 and not above TO")
    found = []
    while size <= last:
        found.append(size)
        size *= int(match[3])
    return found


def format_size(size: int) -> str:
    """ "64 MiB", "1.5 KiB", "12 B"."""
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= scale:
            return f"{size / scale:.4g} {unit}" if size % scale else f"{size // scale} {unit}"
    return f"{size} B"


def parse_words(text: str, allowed: tuple[str, ...], what: str) -> list[str]:
    """A comma list of words out of `allowed`; "all" means all of them."""
    words = list(allowed) if text == "all" else [word.strip() for word in text.split(",")]
    for word in words:
        if word not in allowed:
            raise ValueError(f"'{word}' is no {what}; braid has {', '.join(allowed)}")
    return list(dict.fromkeys(words))
