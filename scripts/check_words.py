#!/usr/bin/env python3
"""Finds coined nouns: a type in a header of src/ has a plain word for its name, or one with a row.

A type's noun is the last word of its name: `HostRing` is a ring, `ShareBalance` a balance. It must
be in scripts/plain_nouns.txt, or in the first column of docs/glossary.md or docs/words.md. Whoever
names something anew says so there, where a reader will look for it.
Prints one line per violation, `file:line: message`, and exits 1 if there is any.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

TYPE = re.compile(r"^\s*(?:class|struct|enum class|using)\s+([A-Z]\w+)\s*(?:[:={]|final\b|$)")
WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z]|\d|\b)|[A-Z][a-z]*|\d+")
ROW = re.compile(r"^\| ([^|]+) \|")
HEADERS = {".h", ".cuh"}


def noun_of(name: str) -> str:
    """HostRing -> ring."""
    words = [word for word in WORD.findall(name) if not word.isdigit()]
    return str(words[-1]).lower()


def known(root: Path) -> set[str]:
    """Plain nouns, and every word of the first columns of both pages."""
    words = set((root / "scripts/plain_nouns.txt").read_text().split())
    for page in ("docs/glossary.md", "docs/words.md"):
        for line in (root / page).read_text().splitlines():
            if row := ROW.match(line):
                words.update(re.findall(r"[a-z]+", row[1].lower()))
    return words


def types(path: Path) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if found := TYPE.match(line):
            yield number, found[1]


def check(root: Path) -> list[str]:
    words = known(root)
    complaints = []
    for path in sorted((root / "src").rglob("*")):
        if path.suffix not in HEADERS:
            continue
        for number, name in types(path):
            noun = noun_of(name)
            if noun not in words and noun.removesuffix("s") not in words:
                where = f"{path.relative_to(root)}:{number}"
                complaints.append(
                    f"{where}: {name}: '{noun}' is no plain noun and has no row in docs/glossary.md"
                )
    return complaints


def main() -> int:
    found = check(
        Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    )
    print("\n".join(found) if found else "words: every type's noun is plain or in the glossary")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
