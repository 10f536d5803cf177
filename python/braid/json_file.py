"""Where records go: a file, or standard output."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

STDOUT = Path("-")
"""`--json -`: the record is all that standard output has; tables go to standard error."""


def save(record: Any, path: Path) -> None:  # noqa: ANN401 - any dataclass
    """Writes JSON; a reader never sees half of a file."""
    text = json.dumps(asdict(record), indent=1) + "\n"
    if path == STDOUT:
        sys.stdout.write(text)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(path.suffix + ".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)
