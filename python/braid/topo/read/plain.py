"""Tables of tools, made plain again after terminals, web pages and issue trackers.

What they do to text: escape codes, also without the escape character, which no web page shows;
blanks that do not break and blanks of no width; dashes for hyphens; bars between cells; marks of a
quotation; UTF-16 where a Windows shell saved it.
"""

import codecs
import re
import unicodedata

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|(?:[\x1b\u241b\ufffd]|\^\[)?\[[0-9;]*m")
_QUOTED = re.compile(r"^[ ]*(?:>[ ]?)+", re.MULTILINE)
_BARS = "|\u2502\u2503\u2551"
_LINE_ENDS = "\n\r\u2028\u2029\x85"


def decoded(data: bytes) -> str:
    """Text of a file; what is no text is replaced, and refused later."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return data.decode("utf-16", errors="replace")
    return data.decode("utf-8", errors="replace")


def plain(text: str) -> str:
    """The text with blanks that are spaces, hyphens that are hyphens, and no decoration."""
    text = _ESCAPES.sub("", text.replace("&nbsp;", " "))
    changed = {ord(c): _instead(c) for c in set(text) if not c.isalnum()}
    return _QUOTED.sub("", text.translate(changed))


def _instead(char: str) -> str:
    kind = unicodedata.category(char)
    if char in _LINE_ENDS:
        return char
    if kind == "Zs" or char in _BARS or (kind == "Cc" and char.isspace()):
        return " "
    return "-" if kind == "Pd" or char == "\u2212" else "" if kind == "Cf" else char
