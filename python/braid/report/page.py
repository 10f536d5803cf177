"""The page: a summary in words, picture of the machine, warnings, curves, shares, ways between
GPUs, a plan, rates, and where all comes from.
"""

from collections.abc import Iterator, Sequence

from braid.report import palette, plan, probes, summary, table, ways
from braid.report.figures import Group, figures, groups
from braid.report.plan import Plan
from braid.report.probes import Probed
from braid.report.runs import Run
from braid.topo.document import Document
from braid.topo.show import html, matrix, tables, tree, words
from braid.topo.show.markup import clean
from braid.topo.show.svg import draw

_STYLE = """
:root{--shade:#0003}svg .bg{fill:none}.key li{margin:0}
@media screen and (prefers-color-scheme:dark){:root{--shade:#fff4}}
nav{font-size:.9rem}nav a{display:inline-block;color:inherit;margin-right:1rem;scroll-margin:.5rem}
li a{color:inherit;scroll-margin:.5rem}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(22rem,100%),1fr));gap:1rem}
figure{margin:0;break-inside:avoid}figcaption{font-weight:600;font-size:.9rem}
svg.chart{min-width:0;width:100%}.chart text{font:10px system-ui,sans-serif;fill:var(--soft)}
.end{text-anchor:end}.mid{text-anchor:middle}.grid{stroke:var(--line)}
.level{stroke:var(--soft);stroke-dasharray:2 3}
.curve{fill:none;stroke-width:2}.graph{stroke-dasharray:5 3}.dot{stroke:none}
.onwire{stroke-dasharray:1 3}
.key{display:flex;flex-wrap:wrap;gap:.2rem 1.2rem;padding:0;list-style:none;font-size:.85rem}
.key svg{width:1.6rem;height:.7rem;min-width:0;vertical-align:middle;margin-right:.3rem}
.share{display:flex;height:1.1rem;font-size:.75rem;line-height:1.1rem;min-width:12rem}
.share span{overflow:hidden;white-space:nowrap;padding-left:.25rem;color:#fff}
.share span,.dot{print-color-adjust:exact;-webkit-print-color-adjust:exact}
summary{cursor:pointer;font-weight:600;margin-top:1.2rem;scroll-margin:.5rem}
td.w{white-space:normal;min-width:16rem;overflow-wrap:anywhere}
@media screen and (max-width:40rem){.machine svg{max-width:none}.chart text{font-size:13px}
.key{display:grid;grid-template-columns:1fr 1fr;gap:.1rem .6rem;font-size:.8rem}td.w{min-width:0}
th,td{padding:.25rem .35rem}.share{min-width:6rem}.meter{min-width:3rem}}
"""


def page(whole: Document, records: Sequence[Run | Probed], plans: Sequence[Plan] = ()) -> str:
    """The page."""
    runs = groups([one for one in records if isinstance(one, Run)])
    probed = [one for one in records if isinstance(one, Probed)]
    return "\n".join(_lines(whole, runs, probed, plans)) + "\n"


def _lines(
    whole: Document, found: Sequence[Group], probed: Sequence[Probed], plans: Sequence[Plan]
) -> Iterator[str]:
    title = clean(words.heading(whole.machine))
    yield f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
    yield '<meta name="viewport" content="width=device-width,initial-scale=1">'
    yield '<link rel="icon" href="data:,">'  # browsers ask for one otherwise
    style = f"{html.STYLE}{_STYLE}{table.STYLE}{palette.rules()}{probes.STYLE}"
    yield f"<style>{style}</style></head><body><main><h1>{title}</h1>"
    yield from summary.section(whole, found, probed, plans)
    between = list(ways.section(probed, whole))
    yield _navigation(found, probed, bool(plans), bool(between))
    yield f'<section id="machine"><div class="wide machine">{draw(whole, with_title=False)}</div>'
    yield from html.verdict_list(whole)
    yield "</section>"
    for i, group in enumerate(found):
        yield f'<section id="run{i}"><h2>{clean(group.title)}</h2>'
        yield from figures(group, whole)
        yield "</section>"
    for i, one in enumerate(probed):
        yield f'<section id="probe{i}"><h2>{clean(one.title)}</h2>'
        yield from probes.section(one)
        yield "</section>"
    yield from between
    if plans:
        yield '<section id="plan">'
        yield from plan.section(plans)
        yield "</section>"
    yield '<section id="links">'
    yield from _rates(whole)
    yield from _folded("Matrix", matrix.lines(whole.machine))
    yield from _folded("Matrix in NCCL's words", matrix.lines(whole.machine, "nccl"))
    yield from _folded("Tree", tree.lines(whole.machine))
    yield "</section>"
    yield from _provenance([run for group in found for run in group.runs], probed)
    yield f"</main><footer>{html.origin(whole)}</footer></body></html>"


def _navigation(
    found: Sequence[Group], probed: Sequence[Probed], has_plan: bool, has_ways: bool
) -> str:
    links = [("machine", "machine"), *((f"run{i}", g.title) for i, g in enumerate(found))]
    links += [(f"probe{i}", one.title.partition(":")[0]) for i, one in enumerate(probed)]
    links += [("ways", "ways")] if has_ways else []
    links += [("plan", "plan")] if has_plan else []
    links.append(("links", "links"))
    links += [("provenance", "provenance")] if found or probed else []
    return "<nav>" + "".join(f'<a href="#{to}">{clean(text)}</a>' for to, text in links) + "</nav>"


def _rates(whole: Document) -> Iterator[str]:
    """What each link carries."""
    links = whole.derived.links
    if not links:
        return
    yield "<h2>Rates</h2><p>GB/s, NCCL and measured are one direction; duplex is both together.</p>"
    rows = [tables.cells(row) for row in tables.rows(links)]
    yield from table.stacked(tables.HEAD, rows, range(2, 8))
    for how in tables.sources(links):
        yield f'<p class="fix">measured: {clean(how)}</p>'


def _folded(title: str, lines: Sequence[str]) -> Iterator[str]:
    if lines:
        text = "\n".join(clean(line) for line in lines)
        yield f"<details><summary>{title}</summary>"
        yield f'<div class="wide"><pre>{text}</pre></div></details>'


def _provenance(runs: Sequence[Run], probed: Sequence[Probed]) -> Iterator[str]:
    records = [*((run.path, run.facts) for run in runs), *((one.path, one.facts) for one in probed)]
    if not records:
        return
    yield '<section id="provenance"><h2>Provenance</h2>'
    yield "<p>Medians of the slowest rank. Bus bandwidth and bytes as nccl-tests defines them.</p>"
    for path, facts in records:
        yield f'<div class="wide"><table><caption>{clean(path)}</caption>'
        for name, text in facts.items():
            yield f'<tr><th>{clean(name)}</th><td class="w">{clean(text)}</td></tr>'
        yield "</table></div>"
    yield "</section>"
