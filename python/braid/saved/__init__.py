"""Files of measurements: braid's own records, what nccl-tests printed or wrote, and what
scripts/nccl_tests.py made of it.

Everything that takes a record reads it here, so that all take the same files. What reads tables is
loaded where there is one: most commands only might be given a record.
"""

import json
from pathlib import Path

from braid.typed_json import Json

MOST_BYTES = 256 << 20
"""No record is larger: what is, is something else."""
DROP_IN = "braid.nccl_tests/1"
"""The form of scripts/nccl_tests.py, which is read as braid.gpu/2."""


def load(path: Path) -> Json:
    """A file as the document of a record: JSON as it is; tables of nccl-tests, and records of NCCL
    and braid's drop-in in them (DROP_IN), as braid.gpu/2.

    Raises OSError, and ValueError in one line that does not name the file.
    """
    with path.open("rb") as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ValueError(f"more than {MOST_BYTES >> 20} MiB, which is no record")
    if content.lstrip()[:1] not in (b"{", b"["):
        return _from_text(content, path)
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error!s:.100}") from error
    if _is_of_nccl_tests(document):
        from braid.saved import nccl_json, table

        return table.document([nccl_json.read(document)], path.name)
    if isinstance(document, dict) and document.get("schema") == DROP_IN:
        from braid.saved import drop_in

        return drop_in.read(document)
    return document


def _is_of_nccl_tests(document: Json) -> bool:
    """It has a version for a schema, and NCCL's."""
    return isinstance(document, dict) and {"version", "nccl_version", "results"} <= document.keys()


def _from_text(content: bytes, path: Path) -> Json:
    from braid.saved import nccl_text, table

    text = content.decode("utf-8", "replace")
    tables = nccl_text.read(text)
    if not tables:
        raise ValueError("not JSON, and no table of nccl-tests: no line has size, time and busbw")
    return table.document(tables, path.name)
