"""The page in headless Chromium: layout on a phone and on a desk, themes, keyboard, print, console.

A second page holds the report in a frame of the width that is tested and writes down what it sees;
Chromium prints that page after its scripts ran.
"""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from braid.report.page import page
from braid.report.plan import Asked, plans
from braid.report.runs import load
from braid.topo.document import document
from braid.topo.read import load as load_machine

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="skipped: needs chromium")

REPOSITORY = Path(__file__).parents[3]
FIXTURES = REPOSITORY / "tests/python/fixtures/topo"
_LOOK = """
<!doctype html><title>look</title><iframe id="f" srcdoc="PAGE" style="width:WIDTHpx;height:800px">
</iframe><pre id="seen"></pre><script>
document.getElementById("f").onload = () => {
  const d = document.getElementById("f").contentDocument, root = d.documentElement;
  const reachable = [...d.querySelectorAll("a[href],summary")].filter(e => {
    e.focus(); return d.activeElement === e; });
  const details = [...d.querySelectorAll("details")];
  details.forEach(e => e.querySelector("summary").click());
  const boxes = [...d.querySelectorAll("h1,h2,nav a,summary,figure")].map(e => {
    const r = e.getBoundingClientRect(); return [r.left, r.right, r.width, r.height]; });
  document.getElementById("seen").textContent = JSON.stringify({
    wide: root.scrollWidth, view: root.clientWidth, reachable: reachable.length,
    focusable: d.querySelectorAll("a[href],summary").length,
    open: details.filter(e => e.open).length, details: details.length, boxes,
    ink: getComputedStyle(d.body).color, paper: getComputedStyle(d.body).backgroundColor,
    columns: new Set([...d.querySelectorAll("figure")].map(e => e.offsetLeft)).size});
};
</script>"""


@pytest.fixture(scope="module")
def report():
    """A report with everything on it."""
    whole = document(load_machine(FIXTURES / "version_1.json"))
    names = ("gpu_large_2", "gpu_small_2", "paced_421", "bench_host")
    records = [REPOSITORY / f"records/{name}.json" for name in names]
    return page(whole, [load(path) for path in records], plans(Asked("qwen3-235b-a22b"), whole, []))


def chromium(tmp_path, *arguments):
    """Runs the browser without any network; what it wrote to both outputs."""
    command = [
        CHROMIUM,
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--enable-logging=stderr",
    ]
    command += [f"--user-data-dir={tmp_path}/profile", "--host-resolver-rules=MAP * ~NOTFOUND"]
    return subprocess.run(
        [*command, *arguments], capture_output=True, text=True, timeout=120, check=True
    )


def look(tmp_path, report, width, *arguments):
    """What a reader of this width sees."""
    path = tmp_path / "look.html"
    path.write_text(_LOOK.replace("WIDTH", str(width)).replace("PAGE", html.escape(report)))
    done = chromium(tmp_path, "--dump-dom", *arguments, path.as_uri())
    assert "CONSOLE" not in done.stderr, done.stderr
    seen = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout, re.DOTALL)
    return json.loads(html.unescape(seen[1]))


@pytest.mark.parametrize(("width", "columns"), [(375, 1), (1280, 2)])
def test_layout_and_keyboard(tmp_path, report, width, columns):
    seen = look(tmp_path, report, width)
    assert seen["wide"] == seen["view"], "the page scrolls sideways"
    assert seen["columns"] >= columns
    assert (seen["columns"] == 1) == (columns == 1)
    assert all(left >= 0 and right <= seen["view"] for left, right, *_ in seen["boxes"])
    assert all(wide > 0 and high > 0 for *_, wide, high in seen["boxes"])
    assert seen["reachable"] == seen["focusable"] > 5
    assert seen["open"] == seen["details"] > 3


def brightness(colour):
    return sum(map(int, re.findall(r"\d+", colour)[:3]))


def test_dark_and_light(tmp_path, report):
    dark = look(tmp_path, report, 800, "--blink-settings=preferredColorScheme=0")
    light = look(tmp_path, report, 800, "--blink-settings=preferredColorScheme=1")
    assert brightness(dark["paper"]) + 400 < brightness(dark["ink"])
    assert brightness(light["ink"]) + 400 < brightness(light["paper"])


def test_print(tmp_path, report):
    path, pdf = tmp_path / "report.html", tmp_path / "report.pdf"
    path.write_text(report)
    done = chromium(tmp_path, f"--print-to-pdf={pdf}", path.as_uri())
    assert "CONSOLE" not in done.stderr
    assert pdf.read_bytes().startswith(b"%PDF")
    assert pdf.stat().st_size > 20000
