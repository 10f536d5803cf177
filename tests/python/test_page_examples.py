"""The first example of a manual runs, over several nodes on two that this machine plays."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


def first_example(page):
    found = re.search(r"^```python\n(.*?)^```", (DOCS / page).read_text(), re.M | re.S)
    assert found is not None
    assert "assert" in found[1]
    return found[1]


@pytest.mark.parametrize("page", ["nodes.md", "moe.md", "overlap.md"])
def test_the_first_example_runs_on_four_ranks(ranks, page):
    if page == "overlap.md":
        pytest.importorskip("torch", reason="skipped: needs torch")
    program = first_example(page)

    def body():
        exec(compile(program, page, "exec"), {})

    ranks.collect(ranks.start(4, body))


def test_the_engine_s_example_runs(tmp_path):
    """In two processes, of which it starts the second."""
    program = tmp_path / "engine.py"
    program.write_text(first_example("engine.md"))
    subprocess.run([sys.executable, program], check=True, timeout=60)
