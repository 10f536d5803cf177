"""What docs/nccl.md says of a communicator's memory is what the record has."""

import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RUNS = json.loads((ROOT / "records/drop_in_memory_8.json").read_text())["runs"]


def another_communicator(way: str) -> float:
    """MiB of a rank's second communicator, NCCL's own part in it."""
    stages = list(RUNS[way]["mib_per_rank"].values())
    return round(stages[2] - stages[1], 1)


def test_a_communicator_takes_at_most_160_mib() -> None:
    assert another_communicator("braid") <= 160
    assert another_communicator("braid without a race") <= 160
    assert another_communicator("braid before") > 800


def test_the_page_says_what_was_seen() -> None:
    page = (ROOT / "docs/nccl.md").read_text()
    before, now = another_communicator("braid before"), another_communicator("braid")
    assert f"{before:.0f} MiB before, {now:.0f} now" in page
