"""The words of docs/glossary.md and docs/words.md, which ship with the package, and formulas beside
them.

docs/plan_explain.schema.json, the form of what `braid plan explain --json` prints, is made from the
class Meanings (`python -m braid.plan.glossary`).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Final, Literal

from braid.plan import formula, shipped
from braid.plan.formula import Formula
from braid.plan.wrong import PlanError, nearest
from braid.typed_json import format_schema, publish

SCHEMA: Final = "braid.plan.explain/1"
_ROW = re.compile(r"\| (?P<word>[^|]+) \| (?P<meaning>.+) \|$")
_LINK = re.compile(r"\[([^]]+)\]\([^)]+\)")
_MOST_SAYING = 6
_QUALIFIER = re.compile(r" \(.*\)$")


@dataclass(frozen=True)
class Term:
    """One row."""

    word: str
    meaning: str
    section: str

    @property
    def names(self) -> list[str]:
        """How it may be asked for: with and without what stands in brackets."""
        plain = _QUALIFIER.sub("", self.word)
        return [self.word.lower(), *(name.strip().lower() for name in plain.split(","))]


@dataclass(frozen=True)
class Meanings:
    """What `braid plan explain --json` prints."""

    schema: Literal["braid.plan.explain/1"]
    terms: list[Term]
    formulas: list[Formula] = field(default_factory=list)


@cache
def terms() -> tuple[Term, ...]:
    """All of them, in the pages' order."""
    pages = (shipped.text(name) for name in ("glossary.md", "words.md"))
    return tuple(term for page in pages for term in _parse(page))


def _parse(text: str) -> Iterator[Term]:
    section = ""
    for line in text.splitlines():
        if line.startswith("## "):
            section = line[3:]
        found = _ROW.match(line)
        if found and found["word"].strip() not in ("word", "---"):
            yield Term(found["word"].strip(), _LINK.sub(r"\1", found["meaning"]), section)


def meanings(word: str) -> Meanings:
    """All there is to say about a word, or about the number of a formula; without one, everything.
    PlanError with the nearest word for one that is nowhere.
    """
    if not word:
        return Meanings(SCHEMA, list(terms()), list(formula.every()))
    formulas = formula.find(word)
    is_term = any(word.strip().lower() in term.names for term in terms())
    return Meanings(SCHEMA, find(word) if is_term or not formulas else [], formulas)


def find(word: str) -> list[Term]:
    """Every meaning of a word. PlanError with the nearest one else."""
    wanted = word.strip().lower()
    found = [term for term in terms() if wanted in term.names]
    if found:
        return found
    saying = [term.word for term in terms() if re.search(rf"\b{re.escape(wanted)}\b", term.meaning)]
    near = nearest(wanted, {name for term in terms() for name in term.names})
    hint = f"; did you mean {near}?" if near else ""
    if wanted and saying:
        hint = f"; it is said of: {'; '.join(saying[:_MOST_SAYING])}"
    raise PlanError(f"'{word}' is not in the glossary{hint} (braid plan explain lists all words)")


def main() -> None:
    """Prints the schema; docs/plan_explain.schema.json is this output."""
    publish(format_schema(Meanings, f"words and meanings, {SCHEMA}"))


if __name__ == "__main__":
    main()
