"""scripts/torch_stand_ins.py on libraries that are linked with some that are taken away.

What is loaded is loaded in another process: the loader looks among what it has already first.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "scripts"))

import torch_stand_ins  # noqa: E402
from torch_stand_ins import ERROR, STAND_IN, TEXT  # noqa: E402

pytestmark = pytest.mark.skipif(
    not all(map(shutil.which, ("cc", "nm", "readelf"))) or torch_stand_ins.ldconfig() is None,
    reason="skipped: needs cc, nm, readelf and ldconfig",
)
ANSWER = 7
GONE = """
int cudaGone(void) { return 7; }
int cudaOldGone(void) { return 7; }
int __cudaGone(void) { return 7; }
int cudaGetLastError(void) { return 7; }
const char *cudaGetErrorString(int code) { return "7"; }
int cuptiGetResultString(int code, const char **out) { *out = "7"; return 7; }
"""
ASKS = """
int cudaGone(void), cudaHere(void), cudaOldGone(void), __cudaGone(void), cudaGetLastError(void);
int cuptiGetResultString(int code, const char **out);
const char *cudaGetErrorString(int code);
int asks_gone(void) { return cudaGone(); }
int asks_old(void) { return cudaOldGone(); }
int asks_hidden(void) { return __cudaGone(); }
int asks_last(void) { return cudaGetLastError(); }
int asks_here(void) { return cudaHere(); }
const char *asks_text(void) { return cudaGetErrorString(1); }
const char *asks_out(void) { const char *out; cuptiGetResultString(1, &out); return out; }
"""


def compiled(folder: Path, name: str, text: str, *words: str, looks: str = "$ORIGIN") -> None:
    """A library of this name, which says where it looks for others."""
    folder.mkdir(exist_ok=True)
    source = folder / "source.c"
    source.write_text(text)
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-w", source, "-o", folder / name, f"-Wl,-soname,{name}",
         f"-Wl,-rpath,{looks}", "-Wl,--no-as-needed", *words],
        check=True,
    )  # fmt: skip
    source.unlink()


def said_by(library: Path, function: str, kind: str = "c_int", **more: str) -> str:
    """What a function answers, or how the library does not load."""
    program = f"""
import ctypes
function = ctypes.CDLL({str(library)!r}).{function}
function.restype = ctypes.{kind}
print(function())
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **more}, check=False, timeout=60,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    return ended.stdout.strip()


def gone(folder: Path) -> None:
    """A library of which one function has no version."""
    folder.mkdir(exist_ok=True)
    versions = folder / "versions"
    names = "cudaGone; __cudaGone; cudaGetLastError; cudaGetErrorString; cuptiGetResultString;"
    versions.write_text(f"libcuda_gone.so.3 {{ {names} }};\n")
    compiled(folder, "libcuda_gone.so.3", GONE, f"-Wl,--version-script={versions}")
    versions.unlink()


@pytest.fixture(params=["$ORIGIN", "${ORIGIN}"])
def folder(tmp_path, request):
    """Torch's, whose only library asks functions of two others: one is gone, one is here."""
    own, here = tmp_path / "lib", tmp_path / "here"
    gone(own)
    compiled(here, "libcuda_here.so.1", f"int cudaHere(void) {{ return {ANSWER}; }}")
    others = [str(own / "libcuda_gone.so.3"), str(here / "libcuda_here.so.1")]
    origin = request.param
    compiled(own, "libtorch_x.so", ASKS, *others, looks=f"{origin}:{origin}/../here")
    (own / "libcuda_gone.so.3").unlink()
    return own


def test_it_does_not_load_before(folder):
    assert "libcuda_gone" in said_by(folder / "libtorch_x.so", "asks_gone")


@pytest.mark.parametrize("times", [1, 2])
def test_what_is_gone_answers_with_an_error_and_what_is_here_as_ever(folder, times):
    for _ in range(times):
        assert torch_stand_ins.make(folder) == ["libcuda_gone.so.3"]
    library = folder / "libtorch_x.so"
    for function in ("asks_gone", "asks_old", "asks_hidden", "asks_last"):
        assert said_by(library, function) == str(ERROR), function
    assert said_by(library, "asks_here") == str(ANSWER)


@pytest.mark.parametrize("function", ["asks_text", "asks_out"])
def test_an_errors_text_is_text(folder, function):
    torch_stand_ins.make(folder)
    assert said_by(folder / "libtorch_x.so", function, "c_char_p") == repr(TEXT.encode())


def test_a_library_that_comes_later_takes_its_name_back(folder):
    torch_stand_ins.make(folder)
    gone(folder.parent / "here")
    assert torch_stand_ins.make(folder) == []
    assert said_by(folder / "libtorch_x.so", "asks_gone") == str(ANSWER)


def test_what_the_system_has_is_not_shadowed(folder, monkeypatch):
    """Its functions are not put into the stand-in either, where another library is gone."""
    system = folder.parent / "system"
    gone(system)
    compiled(folder, "libcuda_more.so", "int cudaMore(void) { return 7; }")
    more = "int cudaMore(void); int asks_more(void) { return cudaMore(); }"
    compiled(folder, "libtorch_y.so", more, str(folder / "libcuda_more.so"))
    (folder / "libcuda_more.so").unlink()
    known = {"libcuda_gone.so.3": system / "libcuda_gone.so.3"}
    monkeypatch.setattr(torch_stand_ins, "known_libraries", lambda: known)
    assert torch_stand_ins.make(folder) == ["libcuda_more.so"]
    assert said_by(folder / "libtorch_y.so", "asks_more") == str(ERROR)
    assert torch_stand_ins.functions("defined", [folder / STAND_IN]) == {"cudaMore": ""}


def test_the_systems_libraries_are_known_by_their_names():
    known = torch_stand_ins.known_libraries()
    assert known["libc.so.6"].is_file()


def test_ldconfig_is_found_outside_the_path(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert torch_stand_ins.ldconfig() is not None


def test_without_ldconfig_nothing_is_known(folder, monkeypatch):
    monkeypatch.setattr(torch_stand_ins, "ldconfig", lambda: None)
    assert torch_stand_ins.make(folder) == ["libcuda_gone.so.3"]


def test_torchs_own_folder_is_searched_though_no_library_says_so(tmp_path):
    """What is no link is never taken away."""
    compiled(tmp_path, "libcuda_own.so", "int cudaOwn(void) { return 7; }", looks="/nowhere")
    text = "int cudaOwn(void); int asks_own(void) { return cudaOwn(); }"
    compiled(tmp_path, "libtorch_x.so", text, str(tmp_path / "libcuda_own.so"), looks="/nowhere")
    assert torch_stand_ins.make(tmp_path) == []
    assert not (tmp_path / "libcuda_own.so").is_symlink()


def test_the_driver_and_what_is_not_cudas_have_no_stand_in(tmp_path):
    """A driver that comes later is found, also behind a stand-in that is asked first."""
    driver, own = tmp_path / "driver", tmp_path / "lib"
    compiled(driver, "libcuda.so.1", "int cuInit(void) { return 7; }")
    compiled(own, "libcuda_gone.so", "int cudaGone(void) { return 7; }")
    compiled(own, "libother.so", "int other(void) { return 7; }")
    text = "int cuInit(void), cudaGone(void); int asks(void) { return cuInit() + cudaGone(); }"
    others = [own / "libcuda_gone.so", driver / "libcuda.so.1", own / "libother.so"]
    compiled(own, "libtorch_x.so", text, *map(str, others))
    for name in ("libcuda_gone.so", "libother.so"):
        (own / name).unlink()
    assert torch_stand_ins.make(own) == ["libcuda_gone.so"]
    compiled(driver, "libother.so", "int other(void) { return 7; }")
    said = said_by(own / "libtorch_x.so", "asks", LD_LIBRARY_PATH=str(driver))
    assert said == str(ANSWER + ERROR)


def test_where_nothing_is_gone_nothing_is_put(tmp_path):
    compiled(tmp_path, "libtorch_x.so", "int all_here(void) { return 1; }")
    assert torch_stand_ins.make(tmp_path) == []
    assert [path.name for path in tmp_path.iterdir()] == ["libtorch_x.so"]


def test_no_torch_is_said(monkeypatch, capsys):
    monkeypatch.setattr(torch_stand_ins.importlib.util, "find_spec", lambda _: None)
    monkeypatch.setattr(sys, "argv", ["torch_stand_ins.py"])
    assert torch_stand_ins.main() == 1
    assert "there is no torch" in capsys.readouterr().err
