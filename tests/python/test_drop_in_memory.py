"""What docs/measured/nccl.md says of a communicator's memory is what the record has."""

import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def stages_of(name: str, way: str) -> list[float]:
    record = json.loads((ROOT / "records" / name).read_text())
    return list(record["runs"][way]["mib_per_rank"].values())


def second_communicator(way: str) -> float:
    """MiB of a rank's, NCCL's own part in it."""
    stages = stages_of("drop_in_memory_8.json", way)
    return round(stages[2] - stages[1], 1)


def further_communicators(name: str) -> list[float]:
    """MiB of a third and a fourth beyond the init of NCCL, which connects nothing there."""
    stages = stages_of(name, "braid without a race")
    return [round(stages[at] - stages[at - 1], 1) for at in (5, 7)]


def test_a_communicator_takes_at_most_160_mib() -> None:
    assert second_communicator("braid") <= 160
    assert second_communicator("braid before") > 800
    for name in ("drop_in_memory_4.json", "drop_in_memory_one_h200_8.json"):
        assert max(further_communicators(name)) <= 160


def test_the_page_says_what_was_seen() -> None:
    page = (ROOT / "docs/measured/nccl.md").read_text()
    assert f"had {second_communicator('braid before'):.0f} MiB before" in page
    four = further_communicators("drop_in_memory_4.json")
    assert f"communicator took {four[0]:.0f} MiB each" in page
    third, fourth = further_communicators("drop_in_memory_one_h200_8.json")
    assert f"{third} and {fourth} MiB, where 154 are computed" in page
