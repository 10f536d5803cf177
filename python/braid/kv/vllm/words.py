"""What goes between routers, schedulers and workers. Nothing here knows vLLM.

What a router says comes from HTTP, and any client may say it instead: it is of any type and size,
and what is read of it raises nothing but what is written here, for vLLM's scheduler ends with it.
"""

import reprlib
from dataclasses import dataclass, field
from typing import Any, TypeGuard

Params = dict[str, Any]
"""kv_transfer_params, with the keys that routers know."""

_MOST_NAME = 4096
"""Characters of a request's name: letters carry it beside those of others."""
_MOST_HOST = 255
_MOST_PAGE = 2**63 - 1

_short = reprlib.Repr()
_short.maxdict, _short.maxstring, _short.maxother = 24, 80, 80


@dataclass(frozen=True, slots=True)
class Remote:
    """Where a request's pages are: what a prefiller's answer says to a decoder."""

    host: str
    port: int
    request: str
    pages: tuple[int, ...] | None
    """None: the prefiller writes, and knows where they are."""


@dataclass(frozen=True, slots=True)
class Fetch:
    """A decoder's request whose pages are to come."""

    remote: Remote
    pages: tuple[int, ...]
    """Those that are not here: the last ones of the request's."""
    tokens: int
    first_page: int


@dataclass(frozen=True, slots=True)
class Give:
    """A prefiller's request whose pages are to go."""

    request: str
    """As the decoder will name it."""
    pages: tuple[int, ...]
    tokens: int
    is_computed: bool


@dataclass(slots=True)
class StepOrders:
    """What a scheduler tells its workers with a step; by the request's own id."""

    gives: dict[str, Give] = field(default_factory=dict)
    grows: dict[str, tuple[int, ...]] = field(default_factory=dict)
    parts: dict[str, int] = field(default_factory=dict)
    """How many tokens of each are computed when the step is over."""
    completes: list[str] = field(default_factory=list)
    """Gives of which everything is computed."""
    restarts: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Preempted and back: their pages, all of them new."""
    preempted: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    """Gives that nobody shall have: aborted."""
    fetches: dict[str, Fetch] = field(default_factory=dict)
    cancels: list[str] = field(default_factory=list)
    """Fetches that are taken back."""
    renews: dict[str, Remote] = field(default_factory=dict)
    """Requests that wait here, so that their leases there are renewed."""
    lets_go: dict[str, Remote] = field(default_factory=dict)
    """Requests that were aborted here before they were fetched."""


def told(value: object) -> str:
    """What a client has said, for messages: of bounded length and depth, and no surrogate in it."""
    try:
        return _short.repr(value)
    except Exception:  # a number of more digits than Python writes
        return type(value).__name__


def params_of(request: Any) -> Params:
    """A request's kv_transfer_params; what is no dictionary says nothing."""
    found = request.kv_transfer_params
    return found if isinstance(found, dict) else {}


def name_of(found: object) -> str | None:
    """A request's name as it can go over; None: it is none."""
    return found if _is_text(found, _MOST_NAME) else None


def _is_text(found: object, most: int) -> TypeGuard[str]:
    """Whether it is words of 1 to `most` characters, all of which are Unicode's."""
    if not isinstance(found, str) or not 0 < len(found) <= most:
        return False
    try:
        found.encode()
    except UnicodeEncodeError:
        return False
    return True


def remote_of(params: Params, request: str) -> Remote | None:
    """What a router says of a request's prefiller; None when that is not enough to find it.
    ValueError, and nothing else: pages that are none.
    """
    host, port = params.get("remote_host"), _port_of(params.get("remote_port"))
    name = name_of(params.get("transfer_id")) or name_of(params.get("remote_request_id"))
    if not _is_text(host, _MOST_HOST) or port is None or name is None:
        return None
    if params.get("transfer_mode") == "push":
        return Remote(host, port, name, None)
    return Remote(host, port, name, _pages_of(params.get("remote_block_ids"), request))


def _port_of(found: object) -> int | None:
    """1 to 65535, also as digits or as JSON's 5600.0."""
    if isinstance(found, str) or (isinstance(found, float) and found.is_integer()):
        try:
            found = int(found)
        except ValueError:
            return None
    return found if type(found) is int and 0 < found < 65536 else None


def _pages_of(found: object, request: str) -> tuple[int, ...] | None:
    """Of the one group of caches; None: there are none, so the prefiller writes."""
    groups = found if isinstance(found, list | tuple) else [found]
    if found is None or not groups:
        return None
    pages = groups[0] if len(groups) == 1 else None
    if not isinstance(pages, list | tuple) or not all(map(_is_page, pages)):
        raise ValueError(
            f"request '{request}': remote_block_ids: asked for one group of page numbers, found "
            f"{told(found)}"
        )
    return tuple(pages)


def _is_page(found: object) -> bool:
    return type(found) is int and 0 <= found <= _MOST_PAGE


def answer(
    request: str, pages: list[int], engine_id: str, place: tuple[str, int], layout: Params
) -> Params:
    """A prefiller's answer: kv_transfer_params for the decoder. `layout` has tp_size, mode, ..."""
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": (pages,),
        "remote_engine_id": engine_id,
        "remote_request_id": request,
        "remote_host": place[0],
        "remote_port": place[1],
        "dcp_size": 1,
        "pp_size": 1,
        "remote_blocks_expiry_time": None,
        **layout,
    }
