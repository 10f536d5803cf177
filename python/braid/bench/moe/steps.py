"""Single calls that are timed, of anybody with DeepEP's interface, in graphs and eager."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from braid.bench.moe.arrivals import Arrivals, cast, wrong_bytes
from braid.bench.moe.contestants import Case

_BF16 = 2


def _nothing() -> None:
    pass


@dataclass
class Timed:
    """One thing to time. `bytes`: what it must carry to other ranks, or (`is_local`) read and write
    in its own GPU's memory. `before` and `after` belong to each call and are not timed.
    """

    name: str
    bytes: int
    call: Callable[[], Any]
    is_local: bool = False
    before: Callable[[], Any] = _nothing
    after: Callable[[], Any] = _nothing
    wrong: Callable[[], int] | None = None
    """Wrong bytes of what the last call left."""

    def whole(self) -> None:
        self.before()
        self.call()
        self.after()


@dataclass(frozen=True)
class Side:
    """Whose calls."""

    prefix: str
    """Of the names of what is timed: "" for braid's."""
    buffer: Any
    """Of normal calls."""
    low: Any
    """Of low-latency ones; None: they are not timed."""
    configs: Mapping[str, tuple[Any, Any]]
    """Of dispatch and combine, by words for how many multiprocessors they take."""
    rows: int
    """`num_max_dispatch_tokens_per_rank`."""
    alternates: bool = False
    """Whether each low-latency call clears the flags of the next, in another half of the buffer: a
    captured one is right only between calls of the other kind.
    """


@dataclass(frozen=True)
class Carried:
    """Bytes to other ranks."""

    bf16: int
    fp8: int
    choices: int
    """A row in bf16 for each choice of an expert elsewhere."""


class Steps:
    """The calls of one side on one rank's tokens."""

    def __init__(self, side: Side, case: Case, arrivals: Arrivals, carried: Carried) -> None:
        self.side, self.case, self.arrivals, self.carried = side, case, arrivals, carried

    def normal(self, by_rank: torch.Tensor) -> Iterator[Timed]:
        """`by_rank`: what a combine of what came is, to the bit."""
        b, c = self.side.buffer, self.case
        layout = b.get_dispatch_layout(c.ids, c.shape.num_experts)
        given = (None, layout[0], None, layout[3], layout[2], c.ids, c.weights)
        quantized = cast(c.x)
        for words, (to, back) in self.side.configs.items():
            dispatch = partial(self._normal_dispatch, given, to)
            yield from self._normal(words, dispatch, back, quantized, by_rank)

    def _normal_dispatch(self, given: tuple[Any, ...], config: Any, x: Any, rows: int) -> Any:
        return self.side.buffer.dispatch(x, *given, num_worst_tokens=rows, config=config)

    def _normal(
        self,
        words: str,
        dispatch: Callable[[Any, int], Any],
        config: Any,
        quantized: Any,
        by_rank: torch.Tensor,
    ) -> Iterator[Timed]:
        c, arrivals, carried = self.case, self.arrivals, self.carried
        most = len(c.x) * c.size

        def name(call: str, how: str) -> str:
            return f"{self.side.prefix}normal {call}, {words}, {how}"

        yield self._graph(
            name("dispatch", "graph"),
            carried.bf16,
            lambda: dispatch(c.x, most),
            lambda left: arrivals.wrong_normal(left[0]),
        )
        yield self._graph(
            name("dispatch fp8", "graph"),
            carried.fp8,
            lambda: dispatch(quantized, most),
            lambda left: arrivals.wrong_normal(left[0]),
        )
        rows, _, _, _, handle, _ = dispatch(c.x, most)
        yield self._graph(
            name("combine", "graph"),
            carried.bf16,
            lambda: self.side.buffer.combine(rows, handle, config=config),
            lambda left: wrong_bytes(left[0], by_rank),
        )
        yield Timed(
            name("dispatch", "eager, exact sizes"),
            carried.bf16,
            lambda: dispatch(c.x, 0),
            wrong=lambda: arrivals.wrong_normal(dispatch(c.x, 0)[0]),
        )

    def low_latency(self, y: torch.Tensor) -> Iterator[Timed]:
        """`y`: results of this rank's experts, to be combined."""
        c, prefix = self.case, self.side.prefix
        if self.side.alternates:
            yield from self._alternating(y)
            return
        yield self._graph(
            f"{prefix}low latency dispatch fp8, graph",
            self.carried.fp8,
            self._dispatch,
            self.arrivals.wrong_low_latency,
        )
        handle = self._dispatch()[2]
        yield self._graph(
            f"{prefix}low latency combine bf16, graph",
            self.carried.choices,
            lambda: self.side.low.low_latency_combine(y, c.ids, c.weights, handle),
        )
        with_table = self._dispatch(topk_weights=c.weights)[2]
        yield self._graph(
            f"{prefix}low latency combine by rank bf16, graph",
            self.carried.bf16,
            lambda: self.side.low.low_latency_combine(
                y, c.ids, c.weights, with_table, partial="rank"
            ),
        )

    def _alternating(self, y: torch.Tensor) -> Iterator[Timed]:
        """A dispatch and its combine, each in a graph, replayed by turns: one of them is timed."""
        c, low, prefix = self.case, self.side.low, self.side.prefix
        handle = self._dispatch()[2]
        low.low_latency_combine(y, c.ids, c.weights, handle)
        to, sent = captured(self._dispatch)
        back, _ = captured(lambda: low.low_latency_combine(y, c.ids, c.weights, sent[2]))
        yield Timed(
            f"{prefix}low latency dispatch fp8, graph",
            self.carried.fp8,
            to,
            after=back,
            wrong=lambda: self.arrivals.wrong_low_latency(sent),
        )
        yield Timed(
            f"{prefix}low latency combine bf16, graph", self.carried.choices, back, before=to
        )

    def _dispatch(self, **asked: Any) -> Any:
        c = self.case
        return self.side.low.low_latency_dispatch(
            c.x, c.ids, self.side.rows, c.shape.num_experts, use_fp8=True, **asked
        )

    def _graph(
        self,
        name: str,
        moved: int,
        call: Callable[[], Any],
        wrong: Callable[[Any], int] | None = None,
    ) -> Timed:
        call()
        replay, left = captured(call)
        return Timed(name, moved, replay, wrong=None if wrong is None else lambda: wrong(left))


def captured(call: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
    """Its replay, and what every replay fills. The call was made once before."""
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        left = call()

    def replay(kept: Any = (call, left)) -> None:  # noqa: ARG001  it reads and writes them
        graph.replay()

    return replay, left
