"""XML from outside, made safe: no entities, no outside references, no bottomless nesting."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from braid.topo.errors import BadTopology

_MAX_DEPTH = 64


@dataclass(frozen=True)
class Element:
    """An element: its name, attributes and child elements. Text between them is not kept."""

    tag: str
    attributes: dict[str, str]
    children: list["Element"] = field(default_factory=list)

    def get(self, name: str, default: str = "") -> str:
        """An attribute; `default` where there is none."""
        return self.attributes.get(name, default)

    def __iter__(self) -> Iterator["Element"]:
        return iter(self.children)


def parse(text: str) -> Element:
    """The root. BadTopology says what is wrong with the text."""
    from defusedxml import DefusedXmlException
    from defusedxml.ElementTree import ParseError, fromstring

    try:
        return _copied(fromstring(text), 1)
    except ParseError as error:
        raise BadTopology(f"the XML is cut off or damaged: {error}") from error
    except DefusedXmlException as error:
        raise BadTopology("the XML defines entities, which no topology needs") from error


def _copied(element: Any, depth: int) -> Element:  # noqa: ANN401 - defusedxml has no types
    if depth > _MAX_DEPTH:
        raise BadTopology(f"the XML is nested more than {_MAX_DEPTH} deep")
    children = [_copied(child, depth + 1) for child in element if isinstance(child.tag, str)]
    return Element(element.tag, dict(element.attrib), children)
