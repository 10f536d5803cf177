"""What scripts/setup and its like need must be on a bare Debian 12."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXTS = ["docs/install.md", "scripts/setup", "scripts/try_install"]


@pytest.mark.parametrize("name", TEXTS)
def test_pip_is_told_by_options_that_debians_has(name):
    """pip 23.0 knows --config-settings, and not -C."""
    text = (ROOT / name).read_text()
    assert "--config-settings" in text
    assert not re.search(r"(^|\s)-C\s*\"?(build-dir|cmake\.define)", text)
