"""Tables that nccl-tests prints, of any version.

What changed over the years: the header names the operation since 2025 and NCCL's version besides;
all programs print the columns redop and root since 2022, before that each its own; the last column
of each half was `error`, the largest difference, and is `#wrong`, the count of wrong values; with
-I each half has the spread of the iterations too; with -S a line ends in the time of day. So
columns are read by the names above them. Other lines (of NCCL, of mpirun) may stand between.
"""

import re
from collections.abc import Sequence
from math import isfinite

from braid.saved.table import IN, OUT, Cell, Row, Table

_PREFIX = re.compile(r"^\[\d+,\d+\]<std(?:out|err)>:\s?")  # mpirun --tag-output
_COMMAND = re.compile(r"^\$?\s*(?!#)(.*\b(\w+_perf\w*)(?:\s+-.*)?)$")
_START = re.compile(r"#\s*Collective test starting:\s*(\S+)")
_SETTINGS = re.compile(r"#\s*nThread\s")
_RANK = re.compile(
    r"#\s*Rank\s+\d+\s+(?:Group\s+\d+\s+)?Pid\s+\d+\s+on\s+(\S+)\s+device\s+\d+\s+\[\S+\]\s+(.+)"
)
_VERSION = re.compile(r"#\s*nccl-tests version (\S+)(?:.*nccl-library=(\d+))?")
_NCCL = re.compile(r"\bNCCL version (\d+\.\d+\.\d+)(?:\+cuda(\d+\.\d+))?")
_FAILED = re.compile(r"#\s*Out of bounds values\s*:\s*(\d+)")
_AVERAGE = re.compile(r"#\s*Avg bus bandwidth\s*:\s*(\S+)")
_COLUMNS = re.compile(r"#\s*size\s+count\s+type\b.*\bbusbw\b")
_ROW = re.compile(r"\s*\d+\s+\d+\s+[a-z]\w*\s")
_HALF = ("time", "algbw", "busbw")
_TIME_OF_DAY = 2  # words of a date and a time
_ROUNDING = 0.02  # of algbw: two digits after the point, three of the time
_MOST_US, _MOST_BYTES = 1e15, 1 << 60


def read(text: str) -> list[Table]:
    """All tables of a text, in order; none when there is no line of columns.

    ValueError, with the line's number, for a row that does not fit the columns above it.
    """
    reader = _Reader()
    for number, line in enumerate(text.splitlines(), 1):
        reader.take(number, _PREFIX.sub("", line.rstrip()))
    return [one for one in reader.tables if one.rows or one in reader.begun]


class _Reader:
    def __init__(self) -> None:
        self.tables = [Table()]
        self.begun: list[Table] = []
        """Those whose columns were seen."""
        self.columns: list[str] = []

    def take(self, number: int, line: str) -> None:
        """One line."""
        if _ROW.match(line) and self.columns:
            self.tables[-1].rows.append(_row(number, line.split(), self.columns))
        elif _COLUMNS.match(line):
            self.columns = line.lstrip("# ").split()
            if not self.begun or self.begun[-1] is not self.tables[-1]:
                self.begun.append(self.tables[-1])
        else:
            self._facts(line)

    def _facts(self, line: str) -> None:
        if found := _START.match(line):
            self._fresh().program = found[1]
        elif _SETTINGS.match(line):
            self._settings(line)
        elif found := _RANK.match(line):
            self.tables[-1].devices.append((found[1], found[2].strip()))
        elif found := _VERSION.match(line):
            table = self._fresh()
            table.version, table.nccl = found[1], _nccl_version(found[2])
        elif found := _FAILED.match(line):
            self.tables[-1].failed = int(found[1])
        elif found := _AVERAGE.match(line):
            self.tables[-1].average_gbps = _number(found[1])
        elif found := _NCCL.search(line):
            self.tables[-1].nccl, self.tables[-1].cuda = found[1], found[2] or ""
        elif not line.startswith("#") and (found := _COMMAND.match(line)):
            table = self._fresh()
            table.command, table.program = found[1].strip(), found[2]

    def _fresh(self) -> Table:
        """The table that a line of a head belongs to: a new one after rows."""
        if self.tables[-1].rows:
            self.tables.append(Table())
            self.columns = []
        return self.tables[-1]

    def _settings(self, line: str) -> None:
        table = self._fresh()
        for name, key in (("warmup iters", "warmup"), (r"(?<!warmup )(?<!agg )iters", "iters")):
            if found := re.search(rf"{name}:\s*(\d{{1,9}})", line):
                table.settings[key] = found[1]
        if found := re.search(r"\bgraph:\s*(\d+)", line):
            table.is_graph = int(found[1]) > 0


def _nccl_version(code: str | None) -> str:
    """22809 is 2.28.9."""
    if not code:
        return ""
    number = int(code)
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


def _with_redop(words: Sequence[str], columns: Sequence[str]) -> Sequence[str]:
    """Some programs (hypercube) leave their column of operations empty: a number stands there."""
    at = columns.index("redop") if "redop" in columns else len(words)
    if at < len(words) and re.fullmatch(r"-?\d+", words[at]):
        return [*words[:at], "none", *words[at:]]
    return words


def _row(number: int, words: Sequence[str], columns: Sequence[str]) -> Row:
    given = words
    words = _with_redop(words, columns)
    # hypercube leaves a rank's own block out of its algbw: half of all with two ranks.
    least = 0.5 if len(words) > len(given) else 1.0
    if not len(columns) <= len(words) <= len(columns) + _TIME_OF_DAY:
        raise ValueError(f"line {number}: {len(words)} columns, the head has {len(columns)}")
    first = columns.index("time") if "time" in columns else len(columns)
    head = dict(zip(columns[:first], words, strict=False))
    nbytes = int(head["size"])
    if nbytes > _MOST_BYTES:
        raise ValueError(f"line {number}: {nbytes} bytes")
    halves = [i for i, name in enumerate(columns) if name == "time"]
    if len(halves) != 2 or any(tuple(columns[i : i + 3]) != _HALF for i in halves):
        raise ValueError(f"line {number}: the head has no time, algbw and busbw, twice")
    ends = [*halves[1:], len(columns)]
    cells = {}
    for who, start, end in zip((OUT, IN), halves, ends, strict=True):
        half = dict(zip(columns[start:end], words[start:end], strict=True))
        if cell := _cell(number, half, nbytes, least):
            cells[who] = cell
    root = head.get("root", "-1")
    if not cells or not re.fullmatch(r"-?\d{1,9}", root):
        raise ValueError(f"line {number}: no times, or no root")
    return Row(nbytes, head["type"], head.get("redop", ""), int(root), cells)


def _cell(number: int, half: dict[str, str], nbytes: int, least: float) -> Cell | None:
    """One half of a row; None where nothing was measured."""
    us, algbw, busbw = (_number(half[name]) for name in _HALF)
    if us is None or algbw is None or busbw is None:
        return None
    if not 0 < us < _MOST_US or algbw < 0 or busbw < 0:
        raise ValueError(f"line {number}: {half['time']} us, {half['algbw']} GB/s")
    most_gbps, margin = nbytes / us / 1e3, _ROUNDING * algbw + 0.01
    if not least * most_gbps - margin <= algbw <= most_gbps + margin:
        raise ValueError(
            f"line {number}: {nbytes} bytes in {us:g} us are no {algbw:g} GB/s:"
            " columns are mixed up"
        )
    wrong = _number(half.get("#wrong", "N/A"))
    return Cell(us, algbw, busbw, None if wrong is None else int(wrong), _number(half.get("i_p99")))


def _number(word: str | None) -> float | None:
    try:
        value = float(word or "")
    except ValueError:
        return None
    return value if isfinite(value) else None
