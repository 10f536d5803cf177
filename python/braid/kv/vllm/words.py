"""What goes between routers, schedulers and workers. Nothing here knows vLLM."""

from dataclasses import dataclass, field
from typing import Any

Params = dict[str, Any]
"""kv_transfer_params, with the keys that routers know."""


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


def remote_of(params: Params, request: str) -> Remote | None:
    """What a router says of a request's prefiller; None when that is not enough to find it."""
    host, port = params.get("remote_host"), params.get("remote_port")
    name = params.get("transfer_id") or params.get("remote_request_id")
    if not isinstance(host, str) or not isinstance(name, str):
        return None
    try:
        number = int(port) if port is not None else 0
    except (TypeError, ValueError):
        return None
    if not 0 < number < 65536:
        return None
    pages = params.get("remote_block_ids")
    if params.get("transfer_mode") == "push" or not pages:
        return Remote(host, number, name, None)
    groups = list(pages)
    if len(groups) != 1 or not all(type(page) is int and page >= 0 for page in groups[0]):
        raise ValueError(
            f"request '{request}': remote_block_ids: asked for one group of page numbers, found "
            f"{pages!r:.100}"
        )
    return Remote(host, number, name, tuple(groups[0]))


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
