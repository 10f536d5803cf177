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


def test_install_md_names_every_header_that_is_installed():
    installed = re.findall(r"include/braid/(\w+\.h)", (ROOT / "cmake/install.cmake").read_text())
    (line,) = re.findall(
        r"^include/braid/(.+)$", (ROOT / "docs/install.md").read_text(), re.MULTILINE
    )
    assert line.split(", ") == installed == ["braid.h", "engine.h", "moe.h"]
