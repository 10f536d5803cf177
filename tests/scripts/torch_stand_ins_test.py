"""scripts/torch_stand_ins.py on libraries that are linked with one that is taken away."""

import ctypes
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "scripts"))

import torch_stand_ins  # noqa: E402

pytestmark = pytest.mark.skipif(
    not all(shutil.which(tool) for tool in ("cc", "nm", "readelf", "ldconfig")),
    reason="skipped: needs cc, nm, readelf and ldconfig",
)
ANSWER = 7


def compiled(folder: Path, name: str, text: str, *words: str) -> None:
    """A library of this name, which says where it looks for others."""
    source = folder / "source.c"
    source.write_text(text)
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-w", source, "-o", folder / name, f"-Wl,-soname,{name}",
         "-Wl,-rpath,$ORIGIN/../here:$ORIGIN", *words],
        check=True,
    )  # fmt: skip
    source.unlink()


@pytest.fixture
def folder(tmp_path):
    """Torch's, whose only library asks three functions of two others: one is gone, one is here."""
    own, here = tmp_path / "lib", tmp_path / "here"
    own.mkdir()
    here.mkdir()
    versions = tmp_path / "versions"
    versions.write_text("libcuda_gone.so.3 { cuGone; };\n")
    gone = "int cuGone(void) { return 0; } int cuOldGone(void) { return 0; }"
    compiled(own, "libcuda_gone.so.3", gone, f"-Wl,--version-script={versions}")
    compiled(here, "libcuda_here.so.1", f"int cuHere(void) {{ return {ANSWER}; }}")
    body = """
    int cuGone(void), cuHere(void), cuOldGone(void);
    int asks_gone(void) { return cuGone(); }
    int asks_old(void) { return cuOldGone(); }
    int asks_here(void) { return cuHere(); }
    """
    others = [str(own / "libcuda_gone.so.3"), str(here / "libcuda_here.so.1")]
    compiled(own, "libtorch_x.so", body, *others, "-Wl,--no-as-needed")
    (own / "libcuda_gone.so.3").unlink()
    return own


def test_it_does_not_load_before(folder):
    with pytest.raises(OSError, match="libcuda_gone"):
        ctypes.CDLL(str(folder / "libtorch_x.so"))


@pytest.mark.parametrize("times", [1, 2])
def test_what_is_gone_answers_with_an_error_and_what_is_here_as_ever(folder, times):
    for _ in range(times):
        assert torch_stand_ins.make(folder) == ["libcuda_gone.so.3"]
    library = ctypes.CDLL(str(folder / "libtorch_x.so"))
    assert library.asks_gone() == torch_stand_ins.ERROR
    assert library.asks_old() == torch_stand_ins.ERROR
    assert library.asks_here() == ANSWER


def test_where_nothing_is_gone_nothing_is_put(tmp_path):
    compiled(tmp_path, "libtorch_x.so", "int all_here(void) { return 1; }")
    assert torch_stand_ins.make(tmp_path) == []
    assert [path.name for path in tmp_path.iterdir()] == ["libtorch_x.so"]


def test_no_torch_is_said(monkeypatch, capsys):
    monkeypatch.setattr(torch_stand_ins.importlib.util, "find_spec", lambda _: None)
    monkeypatch.setattr(sys, "argv", ["torch_stand_ins.py"])
    assert torch_stand_ins.main() == 1
    assert "there is no torch" in capsys.readouterr().err
