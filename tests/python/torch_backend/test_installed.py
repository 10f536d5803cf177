"""Without torch this is the only test of the folder that is collected, and it is skipped."""

import importlib.util
import subprocess
import sys

import pytest


@pytest.mark.skipif(
    importlib.util.find_spec("torch") is None,
    reason="skipped: needs torch, as all tests of braid.torch",
)
def test_the_backend_is_registered_by_importing_it():
    code = (
        "import torch.distributed as d, sys; before = 'braid' in d.Backend.backend_list\n"
        "import braid.torch; print(before, 'braid' in d.Backend.backend_list)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]


def test_braid_alone_does_not_import_torch():
    code = "import sys, braid, braid.comm, braid.cli; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_what_is_missing_is_said():
    code = "import sys; sys.modules['torch'] = None; import braid.torch"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "braid.torch needs PyTorch: pip install torch" in done.stderr
