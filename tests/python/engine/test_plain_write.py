"""The plain program beside which `braid bench engine` measures: built as docs/bench.md says."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def test_the_page_says_how_it_is_built(tmp_path):
    if not (shutil.which("cc") and Path("/usr/include/rdma/fi_rma.h").exists()):
        pytest.skip("skipped: needs cc and libfabric's headers")
    page = (ROOT / "docs/bench.md").read_text()
    (line,) = re.findall(r"^    (cc .*?plain_write) +#", page, re.MULTILINE)
    *build, _ = shlex.split(line)
    program = tmp_path / "plain_write"
    subprocess.run([*build, program], cwd=ROOT, check=True, timeout=60)
    done = subprocess.run(
        [program, "neither"], capture_output=True, stdin=subprocess.DEVNULL, timeout=20, check=False
    )
    assert done.returncode != 0
