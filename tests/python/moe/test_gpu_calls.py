"""What a call on GPU tensors asks of the host, by a core that only notes its calls: how often it
goes there, what it looks at again, which events it takes, what it does where something fails.
"""

import re
from types import SimpleNamespace

import numpy as np
import pytest
from ctrl_c import at_every_instruction
from moe_calls import refused

import braid
from braid import _braid
from braid.moe import Buffer, library

torch = pytest.importorskip("torch")

from braid.torch.moe import GpuCalls, Torch, places  # noqa: E402
from braid.torch.moe.expected_rows import ExpectedRows  # noqa: E402

H, M, T, K, SIZE, EXPERTS = 256, 8, 4, 3, 2, 8
LOCAL = EXPERTS // SIZE
POISON = 0x5A


class Stream:
    def __init__(self, *_):
        self.events, self.waits, self.cuda_stream = [], [], id(self)

    def record_event(self):
        self.events.append(object())
        return self.events[-1]

    def wait_event(self, event):
        self.waits.append(event)

    def wait_stream(self, stream):
        self.waits.append(stream)

    def synchronize(self): ...


REAL = _braid.moe.GpuBuffer


def fits(name, given):
    """Whether the real core takes such arguments, as it says itself."""
    kinds = re.findall(r"arg\d+: (tuple\[[^]]*]|[\w.]+)", getattr(REAL, name).__doc__)
    kinds = [kind.split("[") for kind in kinds]
    return len(kinds) == len(given) and all(
        kind[0] == type(each).__name__ or kind[0].startswith("braid.")
        for kind, each in zip(kinds, given, strict=True)
    )


class GpuBegun:
    """What the core tells of a dispatch."""


class Core:
    """Notes calls; the one that `fails` names raises. A dispatch brings so many rows."""

    def __init__(self, *_):
        self.calls, self.fails, self.rows, self.is_begun = [], None, 5, False

    def __getattr__(self, name):
        def call(*given):
            self.calls.append((name, given))
            assert fits(name, given), f"{name}{given}"
            if name == self.fails:
                raise braid.InvalidArgument(f"{name} fails")
            self.is_begun = self.is_begun and name not in ("finish", "abandon")
            if name == "await_sizes":
                room = given[-3]
                self.is_begun = not 0 != room >= self.rows
                return not self.is_begun
            if name == "begin":
                self.is_begun = True
                given[0].num_rows, given[0].per_expert = self.rows, [3, 0, 1, 1]
            return None

        return call

    def names(self):
        names = [name for name, _ in self.calls]
        self.calls.clear()
        return names


class GpuBuffer(Buffer):
    """A buffer whose calls are all a GPU's."""

    def __init__(self):
        self.rank, self.group_size, self.low_latency_mode = 0, SIZE, True
        self.enable_shrink, self._comm = False, SimpleNamespace(_core=None)
        self._gpu = GpuCalls(self, 0, 1 << 20, False)
        self.core = self._gpu.core

    def _calls(self, array, most_sms=0):  # noqa: ARG002
        self._gpu.num_sms = most_sms
        return self._gpu


@pytest.fixture
def cuda(monkeypatch):
    """torch as if the CPU's memory were GPU 0's, and that of its meta tensors another GPU's."""
    fake = SimpleNamespace(current=Stream())
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: fake.current)
    monkeypatch.setattr(torch.cuda, "set_stream", lambda stream: setattr(fake, "current", stream))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda *_: None)
    monkeypatch.setattr(places, "raw_stream", None)
    monkeypatch.setattr(_braid.moe, "GpuBuffer", Core)
    monkeypatch.setattr(_braid.moe, "GpuBegun", GpuBegun)
    monkeypatch.setattr(library, "_device_of", lambda a: (2, int(a.device.type == "meta")))

    def buffer():
        host = torch.device("cpu")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch, "device", lambda *_: host)
            return GpuBuffer()

    fake.buffer = buffer
    return fake


class Case:
    def __init__(self, buffer):
        self.buffer, self.core = buffer, buffer.core
        self.x = torch.ones(T, H, dtype=torch.bfloat16)
        self.ids = torch.zeros(T, K, dtype=torch.int64)
        self.weights = torch.ones(T, K)

    def dispatch(self, **changed):
        given = {
            "x": self.x, "topk_idx": self.ids, "num_max_dispatch_tokens_per_rank": M,
            "num_experts": EXPERTS, "use_fp8": False,
        }  # fmt: skip
        return self.buffer.low_latency_dispatch(**{**given, **changed})

    def combine(self, got, **changed):
        given = {
            "x": got[0], "topk_idx": self.ids, "topk_weights": self.weights, "handle": got[2],
        }  # fmt: skip
        return self.buffer.low_latency_combine(**{**given, **changed})

    def normal(self, **changed):
        per_rank, _, per_expert, is_in, _ = self.buffer.get_dispatch_layout(self.ids, EXPERTS)
        given = {
            "x": self.x, "num_tokens_per_rank": per_rank, "is_token_in_rank": is_in,
            "num_tokens_per_expert": per_expert, "topk_idx": self.ids,
            "topk_weights": self.weights,
        }  # fmt: skip
        return self.buffer.dispatch(**{**given, **changed})


# ---- how often it goes there ----


def test_both_halves_go_at_once_where_nobody_wants_a_hook(cuda):
    c = Case(cuda.buffer())
    for asked in ({}, {"async_finish": True}):
        got = c.dispatch(**asked)
        assert got[4] is None
        assert c.core.names() == ["run_dispatch"]
        out, _, hook = c.combine(got, **asked)
        assert hook is None
        assert (tuple(out.shape), out.dtype) == ((T, H), torch.bfloat16)
        assert c.core.names() == ["run_combine"]


def test_halves_go_one_by_one_with_hooks(cuda):
    c = Case(cuda.buffer())
    got = c.dispatch(return_recv_hook=True)
    assert c.core.names() == ["send_dispatch"]
    refused("one that is not received", lambda: c.combine(got))
    got[4]()
    assert c.core.names() == ["receive_dispatch"]
    _, _, hook = c.combine(got, return_recv_hook=True)
    assert c.core.names() == ["send_combine"]
    hook()
    assert c.core.names() == ["receive_combine"]


def test_steps_of_a_normal_dispatch_go_at_once_where_sizes_are_known(cuda):
    c = Case(cuda.buffer())
    got = c.normal(num_worst_tokens=9)
    assert c.core.names() == ["layout", "run"]
    assert tuple(got[0].shape) == (9, H)
    again = c.buffer.dispatch(c.x, got[4])
    assert c.core.names() == ["run"]
    assert tuple(again[0].shape) == (9, H)
    got = c.normal()
    assert c.core.names() == ["layout", "begin", "await_sizes", "finish"]
    assert (tuple(got[0].shape), got[3]) == ((5, H), [3, 0, 1, 1])
    assert c.normal(expert_alignment=4)[3] == [4, 0, 4, 4]
    c.core.names()
    c.buffer.combine(got[0], got[4])
    assert c.core.names() == ["combine"]


def test_a_dispatch_is_finished_before_its_sizes_are_known_where_what_comes_has_room(cuda):
    c = Case(cuda.buffer())
    c.normal()
    c.core.names()
    for rows, then in ((5, []), (9, []), (99, ["finish"]), (7, []), (0, [])):
        c.core.rows = rows
        x, ids, weights, _, handle, _ = c.normal()
        assert c.core.names() == ["layout", "begin", "await_sizes", *then]
        assert [len(each) for each in (x, ids, weights, handle.recv_src_idx)] == [rows] * 4
        assert x.is_contiguous()
        c.buffer.combine(x, handle)
        assert c.core.names() == ["combine"]


def test_a_result_may_be_written_into_behind_a_function_with_a_gradient_of_its_own(cuda):
    """As one that has exactly its memory: torch lets nobody write into a view there."""
    c = Case(cuda.buffer())

    class Dispatch(torch.autograd.Function):
        @staticmethod
        def forward(_, x):
            return c.normal(x=x.detach())[0]

        @staticmethod
        def backward(_, grad):
            return torch.ones(T, H, dtype=grad.dtype)

    for is_tried in (False, True):
        x = torch.ones(T, H, dtype=torch.bfloat16, requires_grad=True)
        got = Dispatch.apply(x)
        got.mul_(2)
        got.sum().backward()
        assert x.grad is not None
        assert (got.untyped_storage().nbytes() > got.nbytes) == is_tried


def test_a_dispatch_that_finds_no_memory_for_what_may_come_waits_for_what_does(cuda, monkeypatch):
    c = Case(cuda.buffer())
    c.normal()
    c.core.names()
    empty = Torch.empty

    def small(self, shape, dtype):
        if shape[0] > T * SIZE:
            raise torch.OutOfMemoryError("planned")
        return empty(self, shape, dtype)

    monkeypatch.setattr(Torch, "empty", small)
    assert len(c.normal()[0]) == 5
    assert c.core.names() == ["layout", "begin", "await_sizes", "finish"]


def test_rows_that_are_expected_are_the_most_of_late_for_each_token():
    expected = ExpectedRows(4)
    assert expected.room(100) == 0
    expected.saw(100, 200)
    assert [expected.room(tokens) for tokens in (100, 70, 10, 0)] == [228, 148 + 16, 0, 0]
    expected.saw(100, 20)
    assert 100 < expected.room(100) < 212 + 16
    for _ in range(99):
        expected.saw(100, 20)
    assert expected.room(100) == 21 + 16
    for few in (0, 1):
        expected.saw(few, 20_000)  # of others' tokens
        assert expected.room(few) == 4 * few + 16
    assert expected.room(100) == 21 + 16


def test_what_a_call_fills_is_one_piece_of_memory_and_no_part_lies_in_another(cuda):
    c = Case(cuda.buffer())
    got = c.dispatch(topk_weights=c.weights)
    ((_, given),) = c.core.calls
    ticket, (count, src_info, slots, ranges), copies = given[7], given[10:14], [*given[16:20]]
    memory = got[2].kept.memory
    begin, end = memory.data_ptr(), memory.data_ptr() + 8 * memory.numel()
    rows = 4 * LOCAL * SIZE * M
    parts = {ticket: 16, count: 4 * LOCAL, ranges: 8 * LOCAL * SIZE, src_info: rows, slots: rows}
    table = [4 * SIZE, 4 * SIZE * M, 4 * SIZE * M * K, 4 * SIZE * M * K]
    parts = sorted({**parts, **dict(zip(copies, table, strict=True))}.items())
    assert len(parts) == 9
    for made, at, shape, dtype in (
        (got[1], count, (LOCAL,), torch.int32),
        (got[2][0], src_info, (LOCAL, SIZE * M), torch.int32),
        (got[2][1], ranges, (LOCAL, SIZE), torch.int64),
    ):
        assert (made.data_ptr(), tuple(made.shape), made.dtype) == (at, shape, dtype)
        assert made.is_contiguous()
    assert ticket == begin
    assert all((at - begin) % 256 == 0 for at, _ in parts)
    for (at, nbytes), (after, _) in zip(parts, [*parts[1:], (end, 0)], strict=True):
        assert at + nbytes <= after
    tables = got[2].copies
    assert [each.data_ptr() for each in tables] == copies
    shapes = [(SIZE,), (SIZE, M), (SIZE, M, K), (SIZE, M, K)]
    assert [tuple(each.shape) for each in tables] == shapes
    assert [each.dtype for each in tables] == 3 * [torch.int32] + [torch.float32]
    c.core.names()
    c.combine(got, partial="rank")
    ((_, given),) = c.core.calls
    assert given[1:3] == (slots, ranges)
    assert list(given[8:12]) == copies
    assert given[12] == ticket
    assert given[13] not in (0, ticket)
    c.core.names()
    c.combine(got)
    assert c.core.calls[0][1][8:12] == (0,) * 4
    assert c.dispatch()[2].copies is None


# ---- what it looks at again ----


def wrong_dispatches(c):
    odd = torch.ones(T, 2 * H, dtype=torch.bfloat16)
    yield "x: expected a contiguous", {"x": odd[:, ::2]}
    yield "x: expected a contiguous", {"x": torch.ones(H, T, dtype=torch.bfloat16).T}
    yield "x: expected shape [any, any]", {"x": c.x[None]}
    yield "x: expected memory of GPU 0", {"x": c.x.to("meta")}
    yield "x: expected an array", {"x": c.x.tolist()}
    yield "topk_idx: expected int64, got int32", {"topk_idx": c.ids.int()}
    yield f"topk_idx: expected shape [{T}, any]", {"topk_idx": c.ids[1:]}
    yield "topk_idx: expected a contiguous", {"topk_idx": c.ids.expand(T, K).T.contiguous().T}
    yield "topk_idx: expected memory of GPU 0", {"topk_idx": c.ids.to("meta")}
    yield "topk_weights: expected float32", {"topk_weights": c.weights.double()}
    yield "topk_weights: expected memory of GPU 0", {"topk_weights": c.weights.to("meta")}
    stats = "cumulative_local_expert_recv_stats"
    yield f"{stats}: expected shape [{LOCAL}]", {stats: torch.zeros(LOCAL + 1).int()}
    yield f"{stats}: expected int32", {stats: torch.zeros(LOCAL)}
    waits = "dispatch_wait_recv_cost_stats"
    yield f"{waits}: expected shape [{SIZE}]", {waits: torch.zeros(SIZE + 1).long()}
    most = "num_max_dispatch_tokens_per_rank"
    yield f"{most}: expected a whole number, got 8.0", {most: float(M)}
    yield f"{most}: expected 0 or more, got -1", {most: -1}
    yield "num_experts: expected a whole number, got '8'", {"num_experts": "8"}
    yield "use_fp8: expected True or False", {"use_fp8": np.zeros(2)}
    yield "round_scale: expected True beside", {"use_fp8": True, "use_ue8m0": True}
    yield "async_finish: expected False", {"async_finish": True, "return_recv_hook": True}
    yield "x: expected bfloat16 or", {"x": c.ids, "use_fp8": True}


def wrong_combines(c, got, other):
    yield "x: expected a contiguous", {"x": got[0].transpose(1, 2).contiguous().transpose(1, 2)}
    yield "x: expected shape", {"x": got[0][:, 1:]}
    yield "x: expected memory of GPU 0", {"x": got[0].to("meta")}
    yield "topk_idx: expected [4, 3], as of the dispatch", {"topk_idx": c.ids[1:]}
    yield "topk_idx: expected int64", {"topk_idx": c.ids.int()}
    yield "topk_weights: expected float32", {"topk_weights": c.weights.half()}
    yield "topk_weights: expected a contiguous", {"topk_weights": torch.ones(K, T).T}
    out = torch.zeros(T * H + 1, dtype=torch.bfloat16)
    yield "out: expected an address that is a multiple of 16", {"out": out[1:].view(T, H)}
    yield "out: expected bfloat16, got float32", {"out": torch.zeros(T, H)}
    yield "out: expected shape", {"out": out[:H].view(1, H)}
    yield "handle: expected one of this buffer", {"handle": other}
    yield "handle: expected one that low_latency_dispatch() gave", {"handle": tuple(got[2])}
    yield "partial: expected None, or a dispatch with topk_weights", {"partial": "rank"}
    yield "partial: expected None or 'rank'", {"partial": "node"}
    yield "zero_copy: expected rows in", {"zero_copy": True}
    yield "combine_wait_recv_cost_stats", {"combine_wait_recv_cost_stats": torch.zeros(SIZE)}


def test_a_call_like_an_earlier_one_is_not_checked_again(cuda, monkeypatch):
    c = Case(cuda.buffer())
    c.combine(c.dispatch()), c.normal(), c.buffer.combine(*c.normal(num_worst_tokens=5)[:5:4])

    def checked(*_):
        raise AssertionError("was checked again")

    monkeypatch.setattr(library.Checks, "array", checked)
    c.combine(c.dispatch()), c.normal(), c.buffer.combine(*c.normal(num_worst_tokens=5)[:5:4])
    with pytest.raises(AssertionError, match="again"):
        c.dispatch(x=torch.ones(T + 1, H))


def test_no_right_call_lets_a_wrong_dispatch_through(cuda):
    c = Case(cuda.buffer())
    for words, changed in wrong_dispatches(c):
        c.dispatch(), c.dispatch(topk_weights=c.weights), c.dispatch(use_fp8=True)
        c.core.names()
        refused(f"low_latency_dispatch on rank 0: argument {words}", lambda: c.dispatch(**changed))  # noqa: B023
        assert c.core.names() == [], words


def test_no_right_call_lets_a_wrong_combine_through(cuda):
    c, other = Case(cuda.buffer()), Case(cuda.buffer())
    got, of_other = c.dispatch(), other.dispatch()[2]
    for words, changed in wrong_combines(c, got, of_other):
        c.combine(got), c.combine(got, out=torch.zeros(T, H, dtype=torch.bfloat16))
        c.core.names()
        refused(f"low_latency_combine on rank 0: argument {words}",
                lambda: c.combine(got, **changed))  # fmt: skip  # noqa: B023
        assert c.core.names() == [], words
    c.dispatch(), c.dispatch()
    refused("expected one of the last 2 dispatches", lambda: c.combine(got))


def test_no_right_call_lets_a_wrong_normal_one_through(cuda):
    c, other = Case(cuda.buffer()), Case(cuda.buffer())
    of_other = other.normal()[4]
    for words, changed in {
        "x: expected a contiguous": {"x": torch.ones(H, T).T},
        "x: expected memory of GPU 0": {"x": c.x.to("meta")},
        "x scales: expected shape": {"x": (c.x, torch.ones(1, 2))},
        "topk_idx: expected int64": {"topk_idx": c.ids.int()},
        "topk_weights: expected shape": {"topk_weights": c.weights[:, 1:].contiguous()},
        "is_token_in_rank: expected bool": {"is_token_in_rank": torch.ones(T, SIZE)},
        "num_tokens_per_rank: expected an array": {"num_tokens_per_rank": None},
        "num_tokens_per_expert: expected int32": {"num_tokens_per_expert": torch.ones(EXPERTS)},
        "expert_alignment: expected a whole number, got 1.0": {"expert_alignment": 1.0},
        "num_worst_tokens: expected 0 or more": {"num_worst_tokens": -1},
        "handle: expected one of this buffer": {"handle": of_other},
    }.items():
        got = c.normal()
        c.core.names()
        refused(f"dispatch on rank 0: argument {words}", lambda: c.normal(**changed))  # noqa: B023
        assert c.core.names() == ["layout"], words
    for words, changed in {
        "x: expected the 5 rows that dispatch gave, got 4": (got[0][:4], got[4]),
        "x: expected bfloat16 or": (got[0].view(torch.int16), got[4]),
        "topk_weights: expected shape": (got[0], got[4], c.weights),
        "bias: expected shape": (got[0], got[4], None, got[0]),
        "handle: expected one of this buffer": (got[0], of_other),
    }.items():
        c.buffer.combine(got[0], got[4])
        c.core.names()
        refused(f"combine on rank 0: argument {words}", lambda: c.buffer.combine(*changed))  # noqa: B023
        assert c.core.names() == [], words
    refused("topk_idx: expected int64", lambda: c.buffer.get_dispatch_layout(c.ids.int(), EXPERTS))


def test_a_number_that_may_change_is_looked_at_each_time(cuda):
    c, most = Case(cuda.buffer()), torch.tensor(M)
    assert c.dispatch(num_max_dispatch_tokens_per_rank=most)[0].shape[1] == SIZE * M
    most.fill_(M // 2)
    assert c.dispatch(num_max_dispatch_tokens_per_rank=most)[0].shape[1] == SIZE * M // 2
    assert c.dispatch(num_max_dispatch_tokens_per_rank=np.array(M))[0].shape[1] == SIZE * M


def test_what_was_checked_is_no_leak():
    seen = library.Remembered()
    for n in range(3 * seen._MOST):
        seen.keep(library.key_of((np.zeros(1),), n), n)
        assert seen.find(library.key_of((np.ones(1),), n)) == n
    assert len(seen._found) <= seen._MOST
    assert library.key_of(([1],), 1) is None


# ---- events ----


def test_a_call_takes_an_event_when_somebody_asks(cuda):
    c, here = Case(cuda.buffer()), cuda.current
    got = c.dispatch()
    _, event, _ = c.combine(got)
    assert here.events == []
    cuda.current = there = Stream()
    event.current_stream_wait(), event.current_stream_wait()
    assert len(here.events) == 1  # of the stream where the call was
    assert there.waits == 2 * here.events
    own = c.buffer.get_comm_stream()
    *_, after, _ = c.dispatch(async_finish=True)
    assert len(own.events) == 1
    assert own.waits == [there]  # the caller's stream, as it was
    c.normal(previous_event=event, async_finish=True)
    assert own.waits[-1] is here.events[0]
    assert len(own.events) == 2
    assert cuda.current is there
    after.current_stream_wait()
    assert there.waits[-1] is own.events[0]


# ---- what fails ----


def poisoned(monkeypatch):
    empty = Torch.empty

    def dirty(self, shape, dtype):
        made = empty(self, shape, dtype)
        made.view(torch.uint8).fill_(POISON)
        return made

    monkeypatch.setattr(Torch, "empty", dirty)


def test_a_hook_that_fails_leaves_no_rows_to_be_believed(cuda, monkeypatch):
    poisoned(monkeypatch)
    c = Case(cuda.buffer())
    _, count, handle, _, hook = c.dispatch(topk_weights=c.weights, return_recv_hook=True)
    c.core.fails = "receive_dispatch"
    refused("receive_dispatch fails", hook)
    for each in (count, handle[1], handle.copies[0]):
        assert not each.any()
    assert handle[0].all()
    refused("one that is not received", lambda: c.combine((None, None, handle), x=c.x))
    c.core.fails = None
    _, count, handle, _, hook = c.dispatch(return_recv_hook=True)
    hook()
    c.core.fails = "receive_dispatch"
    refused("receive_dispatch fails", hook)  # a second time
    assert count.all()


def test_a_dispatch_that_is_refused_counts_for_none(cuda):
    c = Case(cuda.buffer())
    got = c.dispatch()
    c.core.fails = "run_dispatch"
    for _ in range(3):
        refused("run_dispatch fails", c.dispatch)
    c.combine(got)


def test_a_normal_dispatch_without_memory_takes_part_all_the_same(cuda, monkeypatch):
    """The others go on: it is begun, and given up."""
    c = Case(cuda.buffer())
    laid = c.buffer.get_dispatch_layout(c.ids, EXPERTS)
    monkeypatch.setattr(c.buffer, "get_dispatch_layout", lambda *_: laid)

    def none(*_):
        raise torch.OutOfMemoryError("planned")

    monkeypatch.setattr(Torch, "empty", none)
    for worst in (9, 0):
        c.core.names()
        with pytest.raises(torch.OutOfMemoryError, match="planned"):
            c.normal(num_worst_tokens=worst)
        waits = ["await_sizes"] if worst == 0 else []
        assert c.core.names() == ["begin", *waits, "abandon"]


def test_a_normal_dispatch_that_fails_while_it_waits_is_given_up(cuda, monkeypatch):
    c = Case(cuda.buffer())
    c.normal()
    c.core.names()
    c.core.fails = "await_sizes"
    refused("await_sizes fails", c.normal)
    assert c.core.names() == ["layout", "begin", "await_sizes", "abandon"]
    c.core.fails = "abandon"
    laid = c.buffer.get_dispatch_layout(c.ids, EXPERTS)
    monkeypatch.setattr(c.buffer, "get_dispatch_layout", lambda *_: laid)
    c.core.names()

    def interrupted(*_):
        raise KeyboardInterrupt("planned")

    monkeypatch.setattr(Torch, "empty", interrupted)
    with pytest.raises(KeyboardInterrupt, match="planned"):
        c.normal()
    assert c.core.names() == ["begin", "abandon"]


@pytest.mark.parametrize("rows", [5, 500], ids=["tried", "too many"])
@pytest.mark.parametrize("worst", [0, 9])
def test_ctrl_c_anywhere_in_a_normal_dispatch_leaves_nothing_begun(cuda, worst, rows):
    c = Case(cuda.buffer())
    c.normal(num_worst_tokens=worst)  # what is remembered shortens the next ones
    c.core.names()
    c.core.rows = rows if worst == 0 else 5
    begun = []

    def behind(came):
        assert not c.core.is_begun, came
        begun.append("begin" in c.core.names())

    assert at_every_instruction(lambda: c.normal(num_worst_tokens=worst), behind) > 100
    assert sum(begun) > 10


def test_what_cannot_be_finished_is_given_up_once(cuda):
    c = Case(cuda.buffer())
    c.core.fails = "run"  # which gives up itself
    refused("run fails", lambda: c.normal(num_worst_tokens=9))
    assert c.core.names() == ["layout", "run"]
    c.core.fails = "finish"
    refused("finish fails", c.normal)
    assert c.core.names() == ["layout", "begin", "await_sizes", "finish", "abandon"]
