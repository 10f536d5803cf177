"""The manual of several nodes tells its protocol in prose before anything else."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs/nodes.md"
LISTING = re.compile(r"^(```|    \S|[-*|] )", re.MULTILINE)


def test_prose_comes_before_any_listing():
    text = PAGE.read_text()
    first = LISTING.search(text)
    assert first is not None
    for heading in ("## What happens to one all_gather", "## Who decides, and why two ranks"):
        assert 0 < text.index(heading) < first.start()
    assert text[: first.start()].count("\n## ") == 3  # these two, and the one that has it
