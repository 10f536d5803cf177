"""The order of virtual functions in bindings/nixl/abi.h against the tables in NIXL's plug-ins."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_POINTER = 8


def _run(*command: str) -> list[str]:
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return done.stdout.splitlines()


def table_of(library: Path, name: str) -> list[str]:
    """The functions of a class's table, as the library has them; pure ones have no name."""
    functions: dict[int, str] = {}
    where = size = 0
    for line in _run("readelf", "-W", "--dyn-syms", str(library)):
        fields = line.split()
        if len(fields) < 8 or not re.fullmatch(r"\d+:", fields[0]):
            continue
        symbol = fields[7].split("@")[0]
        if fields[3] == "FUNC":
            functions.setdefault(int(fields[1], 16), symbol)
        if symbol == f"_ZTV{len(name)}{name}":
            where, size = int(fields[1], 16), int(fields[2], 0)
    assert where, f"{library.name} has no table of {name}"
    slots: dict[int, str] = {}
    for line in _run("readelf", "-W", "-r", str(library)):
        fields = line.split()
        if len(fields) < 4 or not re.fullmatch(r"[0-9a-f]{16}", fields[0]):
            continue
        at = int(fields[0], 16)
        if fields[2] == "R_X86_64_RELATIVE":
            slots[at] = functions.get(int(fields[3], 16), "")
        elif len(fields) >= 5:
            slots[at] = fields[4].split("@")[0]
    mangled = [slots.get(where + i, "") for i in range(2 * _POINTER, size, _POINTER)]
    return _run("c++filt", "--no-params", *mangled)


def in_snake(function: str) -> str:
    """`nixlUcxEngine::registerMem` as register_mem; all destructors alike."""
    name = function.rsplit("::", 1)[-1]
    if name.startswith("~"):
        return "~"
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def declared() -> list[str]:
    """The virtual functions of Backend in abi.h, in order; a destructor has two places."""
    text = (ROOT / "bindings/nixl/abi.h").read_text()
    body = text[text.index("class Backend {") : text.index("/// What nixl_plugin_init() returns.")]
    out = []
    for name in re.findall(r"virtual [\w:&<> ]*?(~?\w+)\(", body):
        out += ["~", "~"] if name.startswith("~") else [name.replace("view_local", "view")]
    return out


@pytest.mark.skipif(not shutil.which("readelf"), reason="needs readelf, of binutils")
def test_the_order_is_that_of_the_wheel(own_plugins: Path) -> None:
    found = [in_snake(name) for name in table_of(own_plugins / "libplugin_UCX.so", "nixlUcxEngine")]
    ours = declared()
    assert len(ours) == 27
    assert found[: len(ours)] == ours


@pytest.mark.skipif(not shutil.which("readelf"), reason="needs readelf, of binutils")
def test_the_base_has_as_many(own_plugins: Path) -> None:
    """What UCX's own class adds comes behind."""
    base = table_of(own_plugins / "libplugin_UCX.so", "nixlBackendEngine")
    assert len(base) == len(declared())
