"""The record of scripts/nccl_tests.py: what programs said under NCCL alone and under braid.

Tables are read as `braid bench compare` reads them. Pure: nothing is started here.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median

from nccl_tests_plan import BRAID, NCCL, TAKEN, Step, is_in_windows

from braid.saved import nccl_text
from braid.saved.table import Table

SCHEMA = "braid.nccl_tests/1"


@dataclass(frozen=True)
class Time:
    """One size, one way: the mean of a call."""

    bytes: int
    dtype: str
    redop: str
    place: str
    """ "nccl" is out of place, as everywhere for nccl-tests; "nccl in place"."""
    us: float


@dataclass(frozen=True)
class Outcome:
    """What a step gave."""

    step: Step
    seconds: float
    exit_code: int
    stopped: str
    """Why the table has no end; "" when it has."""
    nccl: str
    """The library's version, as the program has it."""
    nccl_tests: str
    taken_over: int
    """Ranks that said that braid took their communicator over."""
    num_checked: int
    """Rows, each way, whose values were compared."""
    wrong: int
    """Values."""
    wrong_rows: list[str]
    times_us: list[Time]

    def failure(self, num_ranks: int) -> str:
        """Why it is none of what it should be; "" when all is well."""
        if self.stopped:
            return self.stopped
        if self.wrong or self.exit_code:
            return f"{self.wrong} wrong values, exit code {self.exit_code}"
        if not self.num_checked:
            return "nothing was checked"
        must_take = self.step.who == BRAID and self.step.program in TAKEN
        if must_take and self.taken_over < num_ranks:
            return f"braid took over {self.taken_over} of {num_ranks} ranks' communicators"
        return ""


@dataclass(frozen=True)
class Ratio:
    """NCCL's time / braid's; medians of all that was printed."""

    program: str
    bytes: int
    dtype: str
    redop: str
    place: str
    is_graph: bool
    nccl_us: float
    braid_us: float
    ratio: float
    is_in_windows: bool = False


@dataclass
class Record:
    """Everything of one run."""

    schema: str
    command: str
    date: str
    commit: str
    dirty: bool
    gpu: str
    ranks: int
    options: dict[str, str]
    outcomes: list[Outcome] = field(default_factory=list)
    ratios: list[Ratio] = field(default_factory=list)


def read(step: Step, text: str, log: str, seconds: float, exit_code: int) -> Outcome:
    """A step by what it printed: its table, and braid's log."""
    stopped = ""
    tables: list[Table] = []
    try:
        tables = nccl_text.read(text)
    except ValueError as error:
        stopped = str(error)
    if not stopped and not any(table.average_gbps is not None for table in tables):
        stopped = f"the program did not end: exit code {exit_code}{_complaint(text)}"
    cells = [
        (row, place, cell)
        for table in tables
        for row in table.rows
        for place, cell in row.cells.items()
    ]
    bad = [(row, place, cell) for row, place, cell in cells if cell.wrong]
    return Outcome(
        step,
        round(seconds, 1),
        exit_code,
        stopped,
        tables[0].nccl if tables else "",
        tables[0].version if tables else "",
        log.count(": taken over (rank "),
        sum(cell.wrong is not None for _, _, cell in cells),
        sum(cell.wrong or 0 for _, _, cell in bad),
        [f"{row.nbytes} {row.dtype} {row.redop} {place}: {cell.wrong}" for row, place, cell in bad],
        [
            Time(row.nbytes, row.dtype, row.redop, place, cell.us)
            for row, place, cell in cells
            if step.keeps_times and row.nbytes
        ],
    )


def _complaint(text: str) -> str:
    """The first line in which a program of nccl-tests says what went wrong."""
    lines = (line.strip() for line in text.splitlines() if "failure" in line or "timeout" in line)
    return next((f": {line}" for line in lines), "")


def ratios(outcomes: Iterable[Outcome]) -> list[Ratio]:
    """For every size that both had, and neither had wrong."""
    found: dict[tuple[str, bool, bool, int, str, str, str], dict[str, list[float]]] = {}
    for outcome in outcomes:
        step = outcome.step
        how = (step.program, "-G" in step.arguments, is_in_windows(step))
        for one in outcome.times_us if not outcome.wrong else ():
            key = (*how, one.bytes, one.dtype, one.redop, one.place)
            found.setdefault(key, {}).setdefault(step.who, []).append(one.us)
    made = []
    for (program, is_graph, in_windows, nbytes, dtype, redop, place), times in found.items():
        if {NCCL, BRAID} <= times.keys():
            theirs, ours = median(times[NCCL]), median(times[BRAID])
            how_many = round(theirs / ours, 4)
            made.append(
                Ratio(
                    program, nbytes, dtype, redop, place, is_graph, theirs, ours, how_many,
                    in_windows,
                )
            )  # fmt: skip
    return made
