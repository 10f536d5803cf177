"""The first example of a manual runs, over several nodes on two that this machine plays."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("page", ["nodes.md", "moe.md"])
def test_the_first_example_runs_on_four_ranks(ranks, page):
    found = re.search(r"^```python\n(.*?)^```", (DOCS / page).read_text(), re.M | re.S)
    assert found is not None
    assert "assert" in found[1]

    def body():
        exec(compile(found[1], page, "exec"), {})

    ranks.collect(ranks.start(4, body))
