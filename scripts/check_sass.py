#!/usr/bin/env python3
"""Proves that the compiled kernels are made of the instructions they were written for.

Beside a kernel file `src/X/y.cu` lies `src/X/y.sass`, one rule per line:

    KERNELS: has PATTERN; no PATTERN; most 9 PATTERN; ...
    KERNELS on ARCHITECTURES: has PATTERN; no PATTERN; ...

All are regular expressions: the first must match a kernel's whole name, ARCHITECTURES the whole
of, say, sm_90a, the others are searched in its machine code, for each architecture in
`build/release/kernels/X/y.fatbin`. A rule that matches no kernel is an error, and so is a library
of that build which holds other kernels than these, or a kernel that the host asks for (as a test
of that build notes) and none of them has. Exits 77 when there is nothing to read or to read it
with.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SKIPPED = 77


@dataclass(frozen=True)
class Rule:
    kernels: str
    architectures: str
    least: int
    most: int | None
    """Places at which the pattern is found."""
    pattern: str


@dataclass(frozen=True)
class Code:
    architecture: str
    kernel: str
    text: str


def parse_rules(text: str) -> list[Rule]:
    rules = []
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        kernels, colon, wants = line.partition(": ")
        for want in wants.split("; "):
            found = re.fullmatch(r"(has|no|most (\d+)) (.+)", want.strip())
            if not colon or not found:
                raise ValueError(
                    f"'{line}' is not `kernels: has PATTERN; no PATTERN; most 9 PATTERN`"
                )
            verb, number, pattern = found.groups()
            least, most = (1, None) if verb == "has" else (0, int(number or 0))
            names, _, architectures = kernels.partition(" on ")
            rules.append(Rule(names, architectures or ".*", least, most, pattern))
    return rules


def parse_codes(dump: str) -> list[Code]:
    """The kernels in what `cuobjdump -sass` prints, without the columns of encodings: two thirds
    of it, in which no rule looks for anything.
    """
    dump = re.sub(r" */\* 0x[0-9a-f]{16} \*/", "", dump)
    codes, architecture = [], "?"
    for section in re.split(r"(?m)^(?=arch = |\s+Function : )", dump):
        first, _, rest = section.partition("\n")
        if first.startswith("arch = "):
            architecture = first.removeprefix("arch = ").strip()
        elif "Function : " in first:
            codes.append(Code(architecture, first.split(" : ")[1].strip(), rest))
    return codes


def complaints(rules: list[Rule], codes: list[Code]) -> Iterator[str]:
    if not codes:
        yield "no kernel found"
    for rule in rules:
        chosen = [code for code in codes if re.fullmatch(rule.kernels, code.kernel)]
        if not chosen:
            yield f"no kernel is named {rule.kernels}"
        for code in chosen:
            if not re.fullmatch(rule.architectures, code.architecture):
                continue
            count = len(re.findall(rule.pattern, code.text))
            where = f"{code.kernel} on {code.architecture}"
            if count < rule.least:
                yield f"{where} lacks {rule.pattern}"
            elif rule.most is not None and count > rule.most:
                often = f" {count} times, {rule.most} at most" if rule.most else ""
                yield f"{where} has {rule.pattern}{often}"


def cuda_tools() -> str | None:
    """A PATH on which cuobjdump finds nvdisasm; None without them."""
    folders = [str(p) for p in ROOT.glob(".venv/lib/python3*/site-packages/nvidia/cu13/bin")]
    path = os.pathsep.join([*folders, os.environ.get("PATH", ""), "/usr/local/cuda/bin"])
    if shutil.which("cuobjdump", path=path) and shutil.which("nvdisasm", path=path):
        return path
    return None


def disassemble(fatbin: Path, path: str) -> str:
    tool = shutil.which("cuobjdump", path=path) or "cuobjdump"
    environment = {**os.environ, "PATH": path}
    command = [tool, "-sass", str(fatbin)]
    return subprocess.run(
        command, env=environment, check=True, capture_output=True, text=True
    ).stdout


def check_one(build: Path, fatbin: Path, codes: list[Code]) -> list[str]:
    name = fatbin.relative_to(build / "kernels").with_suffix(".sass")
    rules = ROOT / "src" / name
    if not rules.exists():
        return [f"src/{name} is missing"]
    wrong = complaints(parse_rules(rules.read_text()), codes)
    return [f"src/{name}: {line}" for line in wrong]


def kernels_in(report: str) -> set[str]:
    """What a test noted in gtest's report; nothing where there is no such report, test or note."""
    try:
        return set(json.loads(report)["testsuites"][0]["testsuite"][0]["kernels"].split())
    except (ValueError, LookupError):
        return set()


def asked_for(build: Path) -> tuple[set[str], str]:
    """The kernels that the host loads, as a test of the build notes, or why they are not known.
    None and no reason: the build has no tests.
    """
    program, test = build / "tests/test_coll", "Preload.NothingIsLoadedAfterwards"
    if not program.parent.exists():
        return set(), ""
    with tempfile.NamedTemporaryFile() as notes:
        command = [str(program), f"--gtest_filter={test}", f"--gtest_output=json:{notes.name}"]
        try:
            done = subprocess.run(
                command, check=False, timeout=300, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            return set(), f"{program} noted no kernels: {error}"
        noted = kernels_in(Path(notes.name).read_text())
    if done.returncode != 0 or not noted:
        tail = done.stdout[-2000:].decode(errors="replace")
        ended = f"ended with {done.returncode} and noted {len(noted)} kernels"
        return set(), f"{' '.join(command[:2])} {ended}; it said:\n{tail}"
    return noted, ""


def absent(asked: set[str], codes: list[Code]) -> Iterator[str]:
    """What is asked for and was not compiled, by architecture."""
    for architecture in sorted({code.architecture for code in codes}):
        here = {code.kernel for code in codes if code.architecture == architecture}
        for name in sorted(asked - here):
            yield f"the host asks for {name}, which no file has on {architecture}"


PYTHON_ONLY = ("overlap",)
"""Folders of kernels that the Python module alone has: the C library has no call for them."""
UNCALLED = ("moe",)
"""Folders of kernels that no library has: only the check of the kernels alone calls them yet."""


def stale(build: Path, fatbins: list[Path]) -> Iterator[str]:
    """Kernels that were compiled and are not what the libraries would load: host code would give
    them arguments of another form.
    """
    for library in sorted([*build.rglob("libbraid.so"), *build.rglob("_braid*.so")]):
        held, is_c = library.read_bytes(), library.name == "libbraid.so"
        for fatbin in fatbins:
            folder = fatbin.relative_to(build / "kernels").parts[0]
            if folder in UNCALLED or (is_c and folder in PYTHON_ONLY):
                continue
            if fatbin.read_bytes() not in held:
                name = fatbin.relative_to(build)
                yield f"{library.relative_to(build)} does not hold {name} as it is now"


def check(build: Path, path: str) -> tuple[int, list[str]]:
    """How many fatbins were read, and what is wrong with them."""
    fatbins = sorted((build / "kernels").rglob("*.fatbin"))
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # reading one is another program's work
        codes = list(pool.map(lambda fatbin: parse_codes(disassemble(fatbin, path)), fatbins))
    found = [check_one(build, *one) for one in zip(fatbins, codes, strict=True)]
    wrong = [line for lines in found for line in lines]
    everything = [code for one in codes for code in one]
    if fatbins:
        asked, why_not = asked_for(build)
        wrong += [why_not] if why_not else absent(asked, everything)
    return len(fatbins), [*wrong, *stale(build, fatbins)]


def main() -> int:
    build = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build/release"
    path = cuda_tools()
    if path is None:
        print("sass: skipped: needs cuobjdump and nvdisasm; run scripts/setup --check")
        return SKIPPED
    num_fatbins, found = check(build, path)
    if num_fatbins == 0:
        print(f"sass: skipped: no kernels in {build}")
        return SKIPPED
    print("\n".join(found) if found else f"sass: {num_fatbins} kernel files follow their rules")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
