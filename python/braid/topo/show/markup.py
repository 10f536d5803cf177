"""Text in SVG and HTML."""

from html import escape

LETTER, SMALL_LETTER, TITLE_LETTER = 6.4, 5.2, 7.4
"""Mean widths in pixels of the picture's three sizes of letters, on the generous side."""


def clean(text: str) -> str:
    """Escaped, and without characters that neither may have."""
    if not text.isprintable():
        text = "".join(c for c in text if c.isprintable())
    return escape(text)


def hover(text: str) -> str:
    """What is shown when the pointer rests on an element; lines stay lines."""
    return "<title>" + "\n".join(clean(line) for line in text.splitlines()) + "</title>"
