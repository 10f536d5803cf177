"""braid.stats(): what became of this process's calls of NCCL."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

import braid
from braid.cli import nccl

ASK = "import braid, json; print(json.dumps(braid.stats()))"


def test_where_braid_does_not_stand_in_there_is_nothing_to_tell() -> None:
    assert braid.stats() == {"nccl": None}


@pytest.mark.skipif(nccl.library() is None, reason="built without the drop-in")
def test_a_preloaded_drop_in_is_asked() -> None:
    path = nccl.library()
    assert path is not None
    done = subprocess.run(
        [sys.executable, "-c", ASK],
        env={**os.environ, "LD_PRELOAD": nccl.preload(path)},
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)["nccl"]
    assert set(found["taken"]) == {*found["handed_on"]} >= {"all_gather", "reduce_scatter"}
    assert sum(found["taken"].values()) + sum(found["handed_on"].values()) == 0
    assert found["why"] == {}
    assert found["communicators"] == {"taken": 0, "taken_over_nodes": 0, "left": {}}
