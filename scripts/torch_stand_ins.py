"""Lets PyTorch's usual wheel load on a machine without CUDA's libraries, for tests on CPUs.

    python3 scripts/torch_stand_ins.py [TORCH/lib]

The wheel on the package index links fifteen libraries, 2.2 GB of wheels, of which nothing is run
where there is no GPU. Beside torch's own libraries this puts one that has every function they lack,
each of which answers with an error, and links it under the names of those that are not here.
A library that is here is left as it is. Needs binutils and a C compiler.
"""

import importlib.util
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

STAND_IN = "libcuda_stand_in.so"
ERROR = 999  # cudaErrorUnknown and CUDA_ERROR_UNKNOWN; no library's word for success
OF_CUDA = re.compile(r"(cu|nccl|nv)\w+")


def said_by(*command: str | Path) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def libraries_of(folder: Path) -> list[Path]:
    """Without those that are links to a stand-in."""
    return [path for path in sorted(folder.glob("*.so*")) if not path.is_symlink()]


def asked_for(libraries: Iterable[Path]) -> tuple[set[str], set[Path]]:
    """The names that the libraries link, and the folders where they look."""
    names, folders = set(), set()
    for library in libraries:
        said = said_by("readelf", "-dW", library)
        names |= set(re.findall(r"\(NEEDED\).*\[(.+)\]", said))
        for path in re.findall(r"\((?:RPATH|RUNPATH)\).*\[(.+)\]", said):
            folders |= {Path(f.replace("$ORIGIN", str(library.parent))) for f in path.split(":")}
    return names, folders


def functions(which: str, libraries: Iterable[Path]) -> dict[str, str]:
    """Of CUDA's libraries by their names, "undefined" or "defined" here, each with its version."""
    found = {}
    for library in libraries:
        for line in said_by("nm", "-D", f"--{which}-only", library).splitlines():
            name, _, version = line.split()[-1].partition("@")
            if OF_CUDA.fullmatch(name):
                found[name] = version.lstrip("@")
    return found


def missing_from(torch_lib: Path) -> tuple[list[str], dict[str, str]]:
    """Names of libraries that no folder has, and functions that no library has."""
    own = [path for path in libraries_of(torch_lib) if path.name != STAND_IN]
    names, folders = asked_for(own)
    here = {path for folder in folders for name in names if (path := folder / name).is_file()}
    here = {path for path in here if path.resolve().name != STAND_IN}
    known = {path.name for path in here} | set(said_by("ldconfig", "-p").split())
    defined = functions("defined", {*own, *here})
    asked = functions("undefined", own)
    return sorted(names - known), {f: asked[f] for f in sorted(asked.keys() - defined.keys())}


def compile_stand_in(lacking: dict[str, str], out: Path) -> None:
    """Functions and their versions: the loader asks for both."""
    nodes: dict[str, list[str]] = {}
    for function, version in lacking.items():
        nodes.setdefault(version, []).append(function)
    with tempfile.TemporaryDirectory() as folder:
        source, versions = Path(folder) / "functions.c", Path(folder) / "versions"
        source.write_text("".join(f"int {f}(void) {{ return {ERROR}; }}\n" for f in lacking))
        versions.write_text(
            "".join(f"{v} {{ {'; '.join(of_it)}; }};\n" for v, of_it in nodes.items() if v)
        )
        said_by(
            "cc", "-shared", "-fPIC", "-w", source, "-o", out, f"-Wl,--version-script={versions}"
        )


def make(torch_lib: Path) -> list[str]:
    """Puts the stand-ins there; the names that they have."""
    names, lacking = missing_from(torch_lib)
    if names:
        compile_stand_in(lacking, torch_lib / STAND_IN)
    for name in names:
        link = torch_lib / name
        link.unlink(missing_ok=True)
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
