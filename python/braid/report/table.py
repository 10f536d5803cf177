"""Tables of a report: columns on a desk, on a phone a card for every row, each number beside the
head of its column; or wider than the page, with a shade where more can be reached by scrolling.
"""

from collections.abc import Container, Iterable, Iterator, Sequence

from braid.topo.show.markup import clean

STYLE = """
.wide{background:
linear-gradient(to right,var(--page) 40%,transparent) 0/2.5rem 100% local no-repeat,
linear-gradient(to left,var(--page) 40%,transparent) 100%/2.5rem 100% local no-repeat,
linear-gradient(to right,var(--shade),transparent) 0/.8rem 100% scroll no-repeat,
linear-gradient(to left,var(--shade),transparent) 100%/.8rem 100% scroll no-repeat}
caption{text-align:left;font-weight:600;padding:.6rem 0 .2rem}
@media screen and (max-width:40rem){.stack thead{position:absolute;left:-9999px}
.stack,.stack tbody,.stack tr,.stack td{display:block}
.stack tr{border:1px solid var(--line);border-radius:.4rem;margin:.6rem 0;padding:.3rem .6rem}
.stack td{display:flex;justify-content:space-between;gap:1rem;white-space:normal;text-align:right;
border:0;padding:.15rem 0;overflow-wrap:anywhere}
.stack td:empty{display:none}.stack td:first-child{font-weight:600;text-align:left}
.stack td[data-h]::before{content:attr(data-h);color:var(--soft);text-align:left;flex:none}}
"""
"""--shade is a colour of the page's style, as --page, --line and --soft are."""


def stacked(
    heads: Sequence[str], rows: Iterable[Sequence[str]], numbers: Container[int]
) -> Iterator[str]:
    """A table of few rows; columns in `numbers` are set flush right. The first one is a card's
    title.
    """
    yield '<div class="wide"><table class="stack"><thead><tr>'
    yield "".join(f"<th{_number(i, numbers)}>{clean(head)}</th>" for i, head in enumerate(heads))
    yield "</tr></thead><tbody>"
    for row in rows:
        cells = (
            f"<td{_number(i, numbers)}{_head(heads[i]) if i else ''}>{clean(text)}</td>"
            for i, text in enumerate(row)
        )
        yield f"<tr>{''.join(cells)}</tr>"
    yield "</tbody></table></div>"


def _number(column: int, numbers: Container[int]) -> str:
    return ' class="n"' if column in numbers else ""


def _head(head: str) -> str:
    return f' data-h="{clean(head)}"' if head else ""
