"""Writes what docs/report.md and docs/bench.md show of records/: the top of a machine's report as
Chromium shows it, and the plot of a record between CPUs; and, into build/reports, the reports of
two machines, which no page shows and git does not keep.

.venv/bin/python scripts/make_report_docs.py [--check]

A picture of a page differs with a machine's fonts: it carries the hash of the page that it shows,
and --check looks at that.
"""

import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image, PngImagePlugin

from braid.probe import picture
from braid.record.probe import from_json

ROOT = Path(__file__).resolve().parent.parent
RESULTS, PAGES = Path("docs/results"), Path("build/reports")
REPORTS = {
    "h200_2": (
        "flexlink_2",
        "flexlink_2_held",
        "p2p_2",
        "host_2",
        "interference_2",
        "engine_2",
        "latency_2",
        "overlap_2",
        "replay_2",
    ),
    "h200_4": ("gpu_with_pieces_4", "curve_4", "p2p_4", "tp_block_8b_4", "tp_block_70b_4"),
}
"""Pages by name: the machine is records/topo_NAME.json."""
SHOWN = "h200_2"
SHOT = RESULTS / "report.png"
PLOT = RESULTS / "bench_host.svg"
_WIDTH, _HEIGHT = 900, 1100
_SOURCE = "Source"
"""The words of the picture that say what it shows."""


def words(name: str) -> list[str]:
    """The command line that makes a page, after "braid"."""
    records = [f"records/{each}.json" for each in REPORTS[name]]
    machine = ["--from", f"records/topo_{name}.json", "--model", "llama3-70b"]
    return ["report", *machine, "--out", f"{name}.html", *records]


def page(name: str) -> str:
    """The page as it is made now."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "page.html"
        line = [str(out) if word.endswith(".html") else word for word in words(name)]
        command = [sys.executable, "-m", "braid.cli", *line]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        return out.read_text(encoding="utf-8")


def source() -> str:
    """What a picture of today's page says of itself."""
    content = hashlib.sha256(page(SHOWN).encode()).hexdigest()
    return f"{SHOWN}.html sha256:{content}"


def source_of(path: Path) -> str:
    """What a picture says of itself; "" where there is none."""
    if not path.is_file():
        return ""
    with Image.open(path) as shot:
        return str(shot.info.get(_SOURCE, ""))


def take_shot(path: Path) -> None:
    """The top of the page as a picture. SystemExit without Chromium."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        sys.exit(f"make_report_docs: {SHOT} needs chromium; run scripts/setup --check")
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "shot.png"
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        options += ["--blink-settings=preferredColorScheme=1", f"--user-data-dir={folder}/profile"]
        options += [f"--window-size={_WIDTH},{_HEIGHT}", f"--screenshot={plain}"]
        shown = Path(folder) / "page.html"
        shown.write_text(page(SHOWN), encoding="utf-8")
        command = [chromium, *options, shown.as_uri()]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        said = PngImagePlugin.PngInfo()
        said.add_text(_SOURCE, source())
        with Image.open(plain) as shot:
            shot.convert("RGB").save(path, pnginfo=said, optimize=True)


def draw_plot(path: Path) -> None:
    """The plot of what two CPUs gave."""
    record = json.loads((ROOT / "records/bench_host.json").read_text(encoding="utf-8"))
    picture.save(from_json(record), path)


def stale() -> list[Path]:
    """Files that are not what records/ give."""
    found = [SHOT] if source_of(ROOT / SHOT) != source() else []
    with tempfile.TemporaryDirectory() as folder:
        draw_plot(Path(folder) / "plot.svg")
        if said((ROOT / PLOT).read_text("utf-8")) != said((Path(folder) / "plot.svg").read_text()):
            found.append(PLOT)
    return found


def said(svg: str) -> list[tuple[str, str]]:
    """The date and every word and number of a plot: matplotlib writes letters as outlines, and
    what they spell beside them. Outlines differ with its version.
    """
    return re.findall(r"<dc:date>(.*?)</dc:date>|<!-- (.*?) -->", svg)


def main() -> int:
    """Writes, or with --check says what is stale."""
    if "--check" in sys.argv:
        found = stale()
        for path in found:
            print(f"{path} is not what records/ give; run scripts/make_report_docs.py")
        return 1 if found else 0
    (ROOT / PAGES).mkdir(parents=True, exist_ok=True)
    for name in REPORTS:
        (ROOT / PAGES / f"{name}.html").write_text(page(name), encoding="utf-8")
    if source_of(ROOT / SHOT) != source():
        take_shot(ROOT / SHOT)
    draw_plot(ROOT / PLOT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
