"""What a test program says of itself in a line of JSON, `WORD: {...}`."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any


def said(program: Path, tests: str, word: str, **environment: str) -> tuple[bool, dict[str, Any]]:
    """Whether it passed, and the line; what went wrong goes to standard error."""
    done = subprocess.run(
        [program, f"--gtest_filter={tests}"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    found = re.search(rf"^(?:{word}): (\{{.*\}})$", done.stdout, re.MULTILINE)
    if done.returncode != 0 or found is None:
        print(done.stdout[-4000:], file=sys.stderr)
    line: dict[str, Any] = json.loads(found.group(1)) if found else {}
    return done.returncode == 0, line
