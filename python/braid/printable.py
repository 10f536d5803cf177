"""Text of others, such as a record's names, as a terminal may have it."""


def printable(text: str) -> str:
    """A question mark for what a terminal would obey or show in another order; lines stay lines."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in text)
