"""The processes that take part in a bench: how they end, and what Ctrl-C does to them."""

import json
import os
import signal
import subprocess
import sys

import pytest

from braid.bench.engine.player import Player
from braid.errors import DriverError
from braid.record.probe import from_json


def test_a_player_that_died_is_named_and_can_be_closed():
    """What could not be written to it stays in a buffer, which closing would write once more."""
    with Player("source", [sys.executable, "-c", "pass"]) as player:
        player._process.wait()
        with pytest.raises(DriverError, match="source has ended before 'open'"):
            player.tell("open")


@pytest.mark.parametrize("kind", ["engine --ways local", "kv", "weights --total 16MiB"])
def test_ctrl_c_ends_the_case_and_no_player(tmp_path, kind):
    """A terminal sends it to all processes of the command."""
    record = tmp_path / "r.json"
    command = [sys.executable, "-m", "braid.cli", "bench", *kind.split(), "--json", str(record)]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env=dict(os.environ), start_new_session=True
    ) as running:
        for line in running.stderr:
            if line.startswith("case 1 of"):
                break
        os.killpg(running.pid, signal.SIGINT)
        said = running.stderr.read()
        assert running.wait(30) == 130
    assert "Traceback" not in said
    kept = from_json(json.loads(record.read_text()))
    assert kept.stopped.startswith("interrupted in case")
    assert all(one.wrong_bytes == 0 for one in kept.series)
