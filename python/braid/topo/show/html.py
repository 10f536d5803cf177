"""One page with every view of a machine: no scripts, nothing from the network."""

from collections.abc import Container, Iterator, Sequence

from braid.topo.document import SCHEMA, Document
from braid.topo.show import matrix, tables, tree, words
from braid.topo.show.markup import clean
from braid.topo.show.svg import draw

STYLE = """
:root{color-scheme:light dark;--ink:#1d2733;--soft:#5b6875;--page:#fff;--line:#d5dce2;--bad:#c62828}
@media screen and (prefers-color-scheme:dark){:root{--ink:#e3e8ed;--soft:#9fabb6;--page:#12181f;
--line:#33404c;--bad:#ff8a80}}
:focus-visible{outline:2px solid;outline-offset:2px}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--page);margin:0 auto;
max-width:70rem;padding:1rem}
h1{font-size:1.3rem}h2{font-size:1.05rem;margin-top:2rem}
.wide{overflow-x:auto}svg{max-width:100%;height:auto;min-width:32rem}
table{border-collapse:collapse;font-size:.85rem}
th,td{text-align:left;padding:.25rem .6rem;border-bottom:1px solid var(--line);white-space:nowrap}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}
pre{font:12px/1.35 ui-monospace,monospace}li{margin:.4rem 0}
.warning b{color:var(--bad)}.fix,footer{color:var(--soft);font-size:.85rem}
@media print{:root{color-scheme:light}body{max-width:none;padding:0}.wide{overflow:visible}
pre{font-size:7px}}
"""
_NUMBERS = range(2, 8)


def page(whole: Document) -> str:
    """The page."""
    return "\n".join(_lines(whole)) + "\n"


def _lines(whole: Document) -> Iterator[str]:
    title = clean(words.heading(whole.machine))
    yield f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
    yield '<meta name="viewport" content="width=device-width,initial-scale=1">'
    yield f"<style>{STYLE}</style></head><body><main><h1>{title}</h1>"
    yield f'<div class="wide">{draw(whole, with_title=False)}</div>'
    yield from verdict_list(whole)
    yield from rate_table(whole)
    yield from block("Measured between GPUs", tables.pair_lines(whole.derived.measured_pairs))
    yield from block("Matrix", matrix.lines(whole.machine))
    yield from block("Matrix in NCCL's words", matrix.lines(whole.machine, "nccl"))
    yield from block("Tree", tree.lines(whole.machine))
    yield f"</main><footer>{origin(whole)}</footer></body></html>"


def verdict_list(whole: Document) -> Iterator[str]:
    """Warnings and notes."""
    if not whole.derived.verdicts:
        return
    yield "<h2>Warnings and notes</h2><ul>"
    for verdict in whole.derived.verdicts:
        fix = f'<div class="fix">{clean(verdict.fix)}</div>' if verdict.fix else ""
        yield (
            f'<li class="{verdict.level}"><b>{verdict.level}</b> {clean(verdict.text)}'
            f" <code>{verdict.code}</code>{fix}</li>"
        )
    yield "</ul>"


def rate_table(whole: Document) -> Iterator[str]:
    """What each link carries."""
    links = whole.derived.links
    if not links:
        return
    yield "<h2>Rates</h2><p>GB/s, NCCL and measured are one direction; duplex is both together.</p>"
    yield '<div class="wide"><table><thead>' + table_row(tables.HEAD, "th") + "</thead><tbody>"
    for row in tables.rows(links):
        yield table_row(tables.cells(row), "td")
    yield "</tbody></table></div>"
    for how in tables.sources(links):
        yield f'<p class="fix">measured: {clean(how)}</p>'


def table_row(cells: Sequence[str], tag: str, numbers: Container[int] = _NUMBERS) -> str:
    """A row; columns in `numbers` are set flush right."""
    opening = [f'<{tag} class="n">' if i in numbers else f"<{tag}>" for i in range(len(cells))]
    marked = (f"{a}{clean(b)}</{tag}>" for a, b in zip(opening, cells, strict=True))
    return f"<tr>{''.join(marked)}</tr>"


def block(title: str, lines: Sequence[str]) -> Iterator[str]:
    """Text in columns; nothing where there is none."""
    if lines:
        text = "\n".join(clean(line) for line in lines)
        yield f'<h2>{title}</h2><div class="wide"><pre>{text}</pre></div>'


def origin(whole: Document) -> str:
    """Where the facts are from, in one line."""
    source = whole.machine.source
    tools = ", ".join(f"{name} {version}" for name, version in source.tools.items() if version)
    return clean(f"{SCHEMA}, read from {source.format}{'; ' + tools if tools else ''}")
