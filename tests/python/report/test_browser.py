"""The page in headless Chromium: layout on a phone and on a desk, themes, keyboard, print, console.

For the first tests a second page holds the report in a frame of the width that is tested and writes
down what it sees; Chromium prints that page after its scripts ran. The others press keys.
"""

import base64
import html
import importlib.util
import json
import re
import subprocess
from pathlib import Path

import chromium as browser
import pytest

from braid.report.page import page
from braid.report.plan import Asked, plans
from braid.report.runs import load
from braid.topo.document import document
from braid.topo.read import load as load_machine
from braid.topo.show import html as topo_html

_SPEC = importlib.util.spec_from_file_location(
    "make_report_docs", Path(__file__).parents[3] / "scripts/make_report_docs.py"
)
script = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(script)
CHROMIUM = browser.PROGRAM
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


PAGES = ("everything", "h200_2", "h200_4", "topo")
"""A report with all kinds of sections, those of two machines, and the page of braid topo."""
REACHED = """(() => {
  const e = document.activeElement, s = getComputedStyle(e), r = e.getBoundingClientRect();
  if (e === document.body) return null;
  return {at: [...document.querySelectorAll("*")].indexOf(e), tag: e.tagName,
    outline: s.outlineStyle, width: parseFloat(s.outlineWidth), ink: s.outlineColor,
    paper: getComputedStyle(document.body).backgroundColor,
    seen: e.matches(".wide") ? r.bottom > 0 && r.top < innerHeight
      : r.top >= 0 && r.bottom <= innerHeight};
})()"""
TO_REACH = """[...document.querySelectorAll("*")].map((e, i) => [e, i]).filter(([e, i]) =>
  e.matches("a[href],summary,button,input,select") ||
  (e.matches(".wide") && e.scrollWidth > e.clientWidth + 1 && !e.closest("details:not([open])"))
).map(([e, i]) => i)"""
SIDEWAYS = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
OPEN_ALL = "document.querySelectorAll('details').forEach(e => { e.open = true; })"


@pytest.fixture(scope="module")
def chrome(tmp_path_factory):
    """One browser for all tests."""
    with browser.Chromium(tmp_path_factory.mktemp("chromium")) as chrome:
        yield chrome


@pytest.fixture(scope="module")
def path_of(tmp_path_factory, report):
    """Where each of PAGES is."""
    folder = tmp_path_factory.mktemp("pages")
    (folder / "everything.html").write_text(report)
    machine = document(load_machine(FIXTURES / "h100_x8.xml"))
    (folder / "topo.html").write_text(topo_html.page(machine))
    for name in script.REPORTS:
        (folder / f"{name}.html").write_text(script.page(name))
    return {name: folder / f"{name}.html" for name in PAGES}


@pytest.fixture
def opened(chrome, path_of):
    """Opens one of PAGES; afterwards its console must be empty."""

    def open_page(name, width=1280, **shown_as):
        chrome.show_as(**shown_as)
        chrome.open(path_of[name], width)
        return chrome

    yield open_page
    assert chrome.said() == []


def contrast(one, other):
    """As WCAG reckons it: 1 to 21."""

    def light(colour):
        parts = [int(x) / 255 for x in re.findall(r"\d+", colour)[:3]]
        linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
        return sum(a * b for a, b in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    dark, bright = sorted((light(one), light(other)))
    return (bright + 0.05) / (dark + 0.05)


def walk(chrome, times, shift=False):
    """What so many Tabs reach, one after the other."""
    stops = []
    for _ in range(times):
        chrome.press("Tab", shift)
        stops.append(chrome.ask(REACHED) or {"at": None})
    return stops


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("name", PAGES)
def test_tab_reaches_all_there_is_in_its_order(opened, name, width, scheme):
    """Links, what folds, and on a phone the tables that scroll; each is in view, with a ring."""
    chrome = opened(name, width, scheme=scheme)
    wanted = chrome.ask(TO_REACH)
    stops = walk(chrome, len(wanted))
    assert [stop["at"] for stop in stops] == wanted
    assert len(wanted) > 3 or (name, width) == ("topo", 1280)
    for stop in stops:
        assert stop["seen"], stop
        assert stop["outline"] == "solid", stop
        assert stop["width"] >= 2, stop
        assert contrast(stop["ink"], stop["paper"]) >= 3, stop
    (after,) = walk(chrome, 1)
    assert after["at"] in (None, *wanted[:1])  # the browser's own controls, or the top again
    if wanted:
        chrome.ask(f"document.querySelectorAll('*')[{wanted[-1]}].focus()")
        back = walk(chrome, len(wanted) - 1, shift=True)
        assert [stop["at"] for stop in back] == wanted[-2::-1]


@pytest.mark.parametrize("key", ["Enter", " "])
def test_keys_open_and_close_what_folds(opened, key):
    chrome = opened("everything")
    states = []
    for stop in range(len(chrome.ask(TO_REACH))):
        chrome.press("Tab")
        if chrome.ask("document.activeElement.tagName") != "SUMMARY":
            continue
        for _ in range(2):
            chrome.press(key)
            states.append(chrome.ask("document.activeElement.parentElement.open"))
        assert chrome.ask("document.activeElement.tagName") == "SUMMARY", stop
    assert states == [True, False] * chrome.ask("document.querySelectorAll('details').length")
    assert len(states) > 6


@pytest.mark.parametrize("name", ["everything", "h200_2", "h200_4"])
def test_enter_follows_the_links_on_top(opened, name):
    """And Tab goes on from there, not from the top."""
    chrome = opened(name, 360)
    for place in range(chrome.ask("document.querySelectorAll('nav a').length")):
        chrome.ask(
            "document.activeElement.blur(); scrollTo(0, 0); history.replaceState({}, '', '#')"
        )
        chrome.ask(f"document.querySelectorAll('nav a')[{place}].focus()")
        chrome.press("Enter")
        top, left, high, inner = chrome.ask(
            "(() => { const r = document.querySelector(location.hash).getBoundingClientRect();"
            "return [r.top, r.left, r.height, innerHeight]; })()"
        )
        at_the_end = chrome.ask("scrollY + innerHeight >= document.body.scrollHeight - 1")
        assert -1 <= top < inner, (place, top)
        assert top <= 40 or at_the_end or place == 0
        assert left >= 0
        assert high > 0
        chrome.press("Tab")
        stop = chrome.ask("document.activeElement.getBoundingClientRect().top + scrollY")
        start = chrome.ask("document.querySelector(location.hash).offsetTop")
        on_page = chrome.ask("document.activeElement !== document.body")
        at = chrome.ask(REACHED)
        is_round = on_page and at["at"] == chrome.ask(TO_REACH)[0]  # nothing more to reach below
        assert not on_page or is_round or stop >= start - 1, place


@pytest.mark.parametrize("width", [320, 360, 430])
@pytest.mark.parametrize("name", PAGES)
def test_a_phone_never_scrolls_sideways(opened, name, width):
    """Also with everything unfolded; what is wider scrolls in a box of its own."""
    chrome = opened(name, width)
    assert chrome.ask(SIDEWAYS) == 0
    chrome.ask(OPEN_ALL)
    assert chrome.ask(SIDEWAYS) == 0
    assert chrome.ask("visualViewport.scale") == 1


def test_arrow_keys_scroll_a_wide_table_on_a_phone(opened):
    chrome = opened("everything", 360)
    while not chrome.ask("document.activeElement.matches('.wide')"):
        chrome.press("Tab")
    chrome.press("ArrowRight")
    chrome.ask("new Promise(done => setTimeout(done, 300))")
    assert chrome.ask("document.activeElement.scrollLeft") > 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_paper_is_white_and_shows_what_would_scroll(opened, name, scheme):
    """Whoever works in the dark prints in black on white, and no table is cut."""
    chrome = opened(name, scheme=scheme, medium="print")
    ink, paper = chrome.ask(
        "[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]"
    )
    assert paper == "rgb(255, 255, 255)"
    assert contrast(ink, paper) > 10
    words = "[...document.querySelectorAll('svg text')].map(e => getComputedStyle(e).fill)"
    assert all(contrast(fill, paper) >= 4.5 for fill in chrome.ask(words))
    boxes = "[...document.querySelectorAll('.wide')].map(e => getComputedStyle(e).overflowX)"
    assert set(chrome.ask(boxes)) == {"visible"}
    pdf = base64.b64decode(chrome.call("Page.printToPDF", preferCSSPageSize=True)["data"])
    assert pdf.startswith(b"%PDF")
    assert 1 <= len(re.findall(rb"/Type\s*/Page\b", pdf)) <= 40


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_every_word_can_be_read(opened, name, scheme):
    """4.5 to 1 against the page, as WCAG asks; on bars it is the bar that counts."""
    chrome = opened(name, scheme=scheme)
    chrome.ask(OPEN_ALL)
    paper = chrome.ask("getComputedStyle(document.body).backgroundColor")
    inks = chrome.ask(
        "[...new Set([...document.querySelectorAll('h1,h2,h3,p,li,b,a,summary,th,td,pre,figcaption,"
        "code,footer,.fix')].map(e => getComputedStyle(e).color))]"
    )
    assert len(inks) >= 2
    assert all(contrast(ink, paper) >= 4.5 for ink in inks), (inks, paper)


RED = """(() => { const e = document.querySelector("SELECTOR");
  return e && getComputedStyle(e).PROPERTY; })()"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("is_report", [True, False])
def test_warnings_are_red_in_both_themes(chrome, path_of, tmp_path, is_report, scheme):
    """Frames of devices were blue in the dark: a later rule took the place of theirs."""
    path = path_of["h200_2"]
    if not is_report:
        path = tmp_path / "warned.html"
        machine = document(load_machine(REPOSITORY / "records/topo_h200_2.json"))
        path.write_text(topo_html.page(machine))
    chrome.show_as(scheme=scheme)
    chrome.open(path)
    found = {
        what: chrome.ask(RED.replace("SELECTOR", where).replace("PROPERTY", what))
        for what, where in (("stroke", "svg rect.wrong"), ("color", ".warning b"))
    }
    for colour in found.values():
        red, green, blue = map(int, re.findall(r"\d+", colour)[:3])
        assert red > 1.4 * max(green, blue), found


@pytest.mark.parametrize("name", ["everything", "h200_2", "h200_4"])
def test_a_report_opens_with_a_summary_in_words(opened, name):
    """Before links, pictures and tables, and on a phone within the first screen."""
    chrome = opened(name, 390)
    first = chrome.ask(
        "[...document.querySelectorAll('main > *')].map(e => e.id || e.tagName).slice(0, 3)"
    )
    assert first == ["H1", "summary", "NAV"]
    assert chrome.ask("document.querySelector('#summary').getBoundingClientRect().top") < 250
    said = chrome.ask("document.querySelector('#summary').innerText")
    assert "braid against nccl in" in said
    assert "faster" in said


@pytest.mark.parametrize("width", [320, 390])
@pytest.mark.parametrize("name", ["everything", "h200_2", "h200_4"])
def test_on_a_phone_every_cell_of_short_tables_is_on_the_page(opened, name, width):
    """Values of a plan were cut off, without a hint that there was more. Each now stands beside the
    head of its column."""
    chrome = opened(name, width)
    boxes = chrome.ask(
        "[...document.querySelectorAll('.stack td')].filter(e => e.innerText).map(e => {"
        "const r = e.getBoundingClientRect(); return [r.left, r.right, e.scrollWidth -"
        " e.clientWidth]; })"
    )
    assert len(boxes) > 30
    assert all(left >= 0 and right <= width and hidden <= 0 for left, right, hidden in boxes)
    heads = chrome.ask(
        "[...document.querySelectorAll('.stack td[data-h]')].map(e =>"
        " getComputedStyle(e, '::before').content)"
    )
    assert '"basis"' in heads
    assert '"GB/s"' in heads
    assert chrome.ask("getComputedStyle(document.querySelector('.stack tr')).display") == "block"


def test_on_a_desk_short_tables_have_columns(opened):
    chrome = opened("everything", 1280)
    assert (
        chrome.ask("getComputedStyle(document.querySelector('.stack tr')).display") == "table-row"
    )
    before = "getComputedStyle(document.querySelector('.stack td[data-h]'), '::before').content"
    assert chrome.ask(before) == "none"


def test_letters_of_charts_can_be_read_on_a_phone(opened):
    chrome = opened("h200_2", 390)
    heights = chrome.ask(
        "[...document.querySelectorAll('.chart text')].map(e => parseFloat(getComputedStyle(e)"
        ".fontSize) * e.ownerSVGElement.getBoundingClientRect().width /"
        " e.ownerSVGElement.viewBox.baseVal.width)"
    )
    assert min(heights) >= 9.5


def test_a_page_that_speaks_is_noticed(chrome, tmp_path):
    """Or the tests above would see no error."""
    for text in ("<script>console.error('no')</script>", "<script>throw 1</script>",
                 "<img src='http://nowhere.example/x.png'>"):  # fmt: skip
        (tmp_path / "bad.html").write_text(f"<!doctype html><title>bad</title>{text}")
        chrome.open(tmp_path / "bad.html")
        assert chrome.said(), text
