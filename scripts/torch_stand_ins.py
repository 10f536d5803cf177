"""Lets PyTorch's usual wheel load on a machine without CUDA's libraries, for tests on CPUs.

    python3 scripts/torch_stand_ins.py [TORCH/lib]

The wheel on the package index links fifteen libraries, 2.2 GB of wheels, of which nothing is run
where there is no GPU. Beside torch's own libraries this puts one that has every function they lack,
each of which answers with an error, and links it under the names of those that are not here.
A library that is here is left as it is, and one that came since takes its name back. The driver
has no stand-in: torch loads what links it when it is asked for a GPU. Needs binutils and a C
compiler.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

STAND_IN = "libcuda_stand_in.so"
ERROR = 999  # cudaErrorUnknown and CUDA_ERROR_UNKNOWN; no library's word for success
TEXT = "this is a stand-in for a library of CUDA"
LIBRARY = re.compile(r"lib(cu|nccl|nv).*")
OF_CUDA = re.compile(r"(__)?(cu|nccl|nv)\w+")
DRIVER = "libcuda.so.1"
OF_DRIVER = re.compile(r"cu(?!File)[A-Z]\w+")
KINDS = (
    (
        r"\w+Get(Error|Status)(String|Name)|ncclGetLastError",
        "const char *%s(void) { return text; }",
    ),
    (
        "cuptiGetResultString",
        f"int %s(int code, const char **out) {{ if (out) *out = text; return {ERROR}; }}",
    ),
    ("cudnnGetLastErrorString", "void %s(char *out, unsigned long size) { if (size) *out = 0; }"),
    (r"\w+", f"int %s(void) {{ return {ERROR}; }}"),
)
"""Functions by their names: what says an error's text must not hand out a number as its address."""


def said_by(*command: str | Path) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def is_stand_in(path: Path) -> bool:
    return path.is_symlink() and path.readlink().name == STAND_IN


def libraries_of(folder: Path) -> list[Path]:
    """Without stand-ins, and without links, which have the names of what is there anyway."""
    found = sorted(folder.glob("*.so*"))
    return [path for path in found if not path.is_symlink() and path.name != STAND_IN]


def asked_for(libraries: Iterable[Path]) -> tuple[set[str], set[Path]]:
    """The names that the libraries link, and the folders where they look."""
    names, folders = set(), set()
    for library in libraries:
        folders.add(library.parent)
        said = said_by("readelf", "-dW", library)
        names |= set(re.findall(r"\(NEEDED\).*\[(.+)\]", said))
        for path in re.findall(r"\((?:RPATH|RUNPATH)\).*\[(.+)\]", said):
            path = path.replace("${ORIGIN}", "$ORIGIN").replace("$ORIGIN", str(library.parent))
            folders |= {Path(folder) for folder in path.split(":")}
    return names, folders


def ldconfig() -> str | None:
    """Debian has it in /sbin, which is not in every user's PATH."""
    folders = [os.environ.get("PATH", ""), "/sbin", "/usr/sbin"]
    return shutil.which("ldconfig", path=os.pathsep.join(folders))


def known_libraries() -> dict[str, Path]:
    """Those that the system's loader finds by their names; it tells "x86-64" and "AArch64"."""
    tool = ldconfig()
    said = said_by(tool, "-p") if tool else ""
    found = re.findall(r"(?m)^\s*(\S+) \(.*64.*\) => (.+)$", said)
    return {name: Path(path) for name, path in found}


def functions(which: str, libraries: Iterable[Path]) -> dict[str, str]:
    """Of CUDA's libraries by their names, "undefined" or "defined" here, each with its version."""
    found = {}
    for library in libraries:
        for line in said_by("nm", "-D", f"--{which}-only", library).splitlines():
            name, _, version = line.split()[-1].partition("@")
            if OF_CUDA.fullmatch(name) and not OF_DRIVER.fullmatch(name):
                found[name] = version.lstrip("@")
    return found


def missing_from(torch_lib: Path) -> tuple[list[str], dict[str, str]]:
    """Names of CUDA's libraries that are nowhere, and functions that no library has."""
    own = libraries_of(torch_lib)
    links, folders = asked_for(own)
    names = {name for name in links if LIBRARY.fullmatch(name) and name != DRIVER}
    found = [folder / name for folder in folders for name in names]
    here = [path for path in found if path.is_file() and not is_stand_in(path)]
    here += [path for name, path in known_libraries().items() if name in names]
    defined = functions("defined", {*own, *here})
    asked = functions("undefined", own)
    lacking = {f: asked[f] for f in sorted(asked.keys() - defined.keys())}
    return sorted(names - {path.name for path in here}), lacking


def declared(function: str) -> str:
    return next(form % function for name, form in KINDS if re.fullmatch(name, function))


def compile_stand_in(lacking: dict[str, str], out: Path) -> None:
    """Functions and their versions: the loader asks for both."""
    nodes: dict[str, list[str]] = {}
    for function, version in lacking.items():
        nodes.setdefault(version, []).append(function)
    script = "".join(f"{v} {{ {'; '.join(of_it)}; }};\n" for v, of_it in nodes.items() if v)
    with tempfile.TemporaryDirectory() as folder:
        source, versions = Path(folder) / "functions.c", Path(folder) / "versions"
        lines = [f'static const char text[] = "{TEXT}";', *map(declared, lacking)]
        source.write_text("\n".join(lines) + "\n")
        versions.write_text(script)
        more = [f"-Wl,--version-script={versions}"] if script else []  # ld takes no empty one
        said_by("cc", "-shared", "-fPIC", "-w", source, "-o", out, *more)


def make(torch_lib: Path) -> list[str]:
    """Puts the stand-ins there; the names that they have. Links of an earlier time are taken away,
    but not before the new ones can be put: torch may be in use.
    """
    names, lacking = missing_from(torch_lib)
    if names:
        compile_stand_in(lacking, torch_lib / STAND_IN)
    for path in torch_lib.glob("*.so*"):
        if is_stand_in(path):
            path.unlink()
    for name in names:
        link = torch_lib / name
        if link.is_symlink():  # to nothing, else the name would not be missing
            link.unlink()
        link.symlink_to(STAND_IN)
    return names


def main() -> int:
    if len(sys.argv) > 1:
        torch_lib = Path(sys.argv[1])
    else:
        found = importlib.util.find_spec("torch")
        if not found or not found.origin:
            print("torch_stand_ins: there is no torch", file=sys.stderr)
            return 1
        torch_lib = Path(found.origin).parent / "lib"
    print("torch_stand_ins:", *(make(torch_lib) or ["nothing is missing"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
