"""BraidConnector as vLLM calls it: the tokens of one engine, whoever prefills; no lost block."""

import random
import threading
import time
from types import SimpleNamespace

import pytest
import vllm_stand_in as stand_in
from kv_peers import LAYOUT, memory
from vllm_stand_in import BLOCK, LAYERS, LIMIT_S, Vllm

import braid

REMOTE = {"do_remote_decode": True, "do_remote_prefill": False}


@pytest.fixture
def made(monkeypatch):
    """make(name, ...) -> an engine; closed at the end."""
    connector = stand_in.install(monkeypatch)
    engines = []

    def make(name, **settings):
        engines.append(Vllm(connector, name, **settings))
        return engines[-1]

    yield make
    for engine in reversed(engines):
        engine.close()


def prompts(count, seed=1):
    rng = random.Random(seed)
    lengths = (1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK, 5 * BLOCK + 3)
    return [[rng.randrange(90) for _ in range(rng.choice(lengths))] for _ in range(count)]


def alone(made, wanted, max_tokens):
    engine = made("plain")
    requests = [engine.add(str(n), p, max_tokens) for n, p in enumerate(wanted)]
    engine.run_until(lambda: all(r.state == "over" for r in requests))
    return [r.tokens for r in requests]


def prefilled(prefill, wanted, **params):
    requests = [prefill.add(f"p{n}", p, 1, {**REMOTE, **params}) for n, p in enumerate(wanted)]
    prefill.run_until(lambda: all(r.answer for r in requests))
    return [r.answer for r in requests]


@pytest.mark.parametrize("mode", ["pull", "push"])
@pytest.mark.parametrize(("there", "here"), [(1, 1), (2, 1), (1, 2)])
def test_tokens_are_those_of_one_engine(made, mode, there, here):
    wanted = prompts(8)
    expected = alone(made, wanted, 5)
    prefill = made("prefill", tp=there, chunk=11, transfer_mode=mode)
    decode = made("decode", tp=here, transfer_mode=mode)
    free = sorted(prefill.free), sorted(decode.free)
    answers = prefilled(prefill, wanted)
    assert {a["transfer_mode"] for a in answers} == {mode}
    assert {a["tp_size"] for a in answers} == {there}
    requests = [
        decode.add(f"d{n}", p, 5, a) for n, (p, a) in enumerate(zip(wanted, answers, strict=True))
    ]
    decode.run_until(lambda: all(r.state == "over" for r in requests), prefill)
    assert [r.tokens for r in requests] == expected
    prefill.run_until(lambda: all(r.state == "over" for r in prefill.requests.values()))
    assert (sorted(prefill.free), sorted(decode.free)) == free


def test_a_corrupted_page_is_caught(made):
    """The control: one byte of one head of one page, and the tokens differ."""
    wanted = prompts(1, seed=4)
    expected = alone(made, wanted, 5)
    prefill, decode = made("prefill"), made("decode")
    (answer,) = prefilled(prefill, wanted)
    prefill.caches[0][LAYERS - 1][answer["remote_block_ids"][0][0], 2, 0, 3] ^= 1
    request = decode.add("d", wanted[0], 5, answer)
    decode.run_until(lambda: request.state == "over", prefill)
    assert [request.tokens] != expected


def test_a_decoder_may_ask_before_the_prefiller_has_begun(made):
    """Push, both told at once by a router that names the transfer: layer by layer, in chunks."""
    wanted = prompts(4, seed=7)
    expected = alone(made, wanted, 3)
    prefill = made("prefill", chunk=9, transfer_mode="push")
    decode = made("decode", transfer_mode="push")
    place = prefill.scheduler._scheduler._door.port
    asked = [
        {"do_remote_prefill": True, "transfer_id": f"x{n}", "remote_host": "127.0.0.1",
         "remote_port": place, "transfer_mode": "push"}
        for n in range(len(wanted))
    ]  # fmt: skip
    requests = [
        decode.add(f"d{n}", p, 3, a) for n, (p, a) in enumerate(zip(wanted, asked, strict=True))
    ]
    for _ in range(20):
        decode.step()
    for n, prompt in enumerate(wanted):
        prefill.add(f"p{n}", prompt, 1, {**REMOTE, "transfer_id": f"x{n}"})
    prefill.run_until(lambda: all(r.state == "over" for r in prefill.requests.values()))
    decode.run_until(lambda: all(r.state == "over" for r in requests))
    assert [r.tokens for r in requests] == expected


@pytest.mark.parametrize("as_new", [{"loaded"}, {"loaded", "resumed"}])
def test_a_preempted_prefill_goes_on_elsewhere(made, as_new):
    """Its blocks are somebody else's at once; what it computes again goes over. vLLM's second
    runner is given it a second time.
    """
    wanted = [prompts(9, seed=2)[n] * 3 for n in (0, 1)]
    wanted = [(p * 40)[:40] for p in wanted]
    expected = alone(made, wanted, 3)
    prefill = made("prefill", chunk=12, transfer_mode="push")
    decode = made("decode", transfer_mode="push")
    prefill.as_new = as_new
    free = sorted(prefill.free)
    requests = [
        prefill.add(f"p{n}", p, 1, {**REMOTE, "transfer_id": f"x{n}"}) for n, p in enumerate(wanted)
    ]
    prefill.step()
    prefill.step()
    prefill.free.reverse()
    prefill.preempt_next = "p0"
    prefill.run_until(lambda: all(r.answer for r in requests))
    loads = [
        decode.add(f"d{n}", p, 3, r.answer)
        for n, (p, r) in enumerate(zip(wanted, requests, strict=True))
    ]
    decode.run_until(lambda: all(r.state == "over" for r in loads), prefill)
    assert [r.tokens for r in loads] == expected
    prefill.run_until(lambda: all(r.state == "over" for r in requests))
    assert sorted(prefill.free) == free


def test_passes_that_are_told_when_their_request_was_preempted_send_none_of_its_new_blocks(made):
    """The word's watcher is a thread like others, and a step waits for none."""
    wanted = [[(7 * n + place) % 90 for place in range(40)] for n in range(2)]
    expected = alone(made, wanted, 3)
    prefill = made("prefill", chunk=12, transfer_mode="push")
    decode = made("decode", transfer_mode="push")
    worker = prefill.workers[0]._worker
    progress, tell, told = worker.prefiller._progress, worker.prefiller._progress._computed, []
    may_tell, before_forward = threading.Event(), worker.before_forward

    def tell_late(parts, layers):
        assert may_tell.wait(LIMIT_S)
        tell(parts, layers)
        told.append(len(layers))

    def restart(orders):
        before_forward(orders)
        if orders.restarts:  # the new blocks hold what others left there
            may_tell.set()
            prefill.wait_until(lambda: sum(told) >= 2 * LAYERS)

    progress._computed, worker.before_forward = tell_late, restart
    asked = {"do_remote_prefill": True, "remote_host": "127.0.0.1", "transfer_mode": "push",
             "remote_port": prefill.scheduler._scheduler._door.port}  # fmt: skip
    loads = [
        decode.add(f"d{n}", p, 3, {**asked, "transfer_id": f"x{n}"}) for n, p in enumerate(wanted)
    ]
    decode.run_until(lambda: len(worker.prefiller._early) == 2)
    for n, prompt in enumerate(wanted):
        prefill.add(f"p{n}", prompt, 1, {**REMOTE, "transfer_id": f"x{n}"})
    prefill.step()
    prefill.step()
    prefill.free.reverse()
    prefill.preempt_next = "p0"
    prefill.run_until(lambda: all(r.state == "over" for r in loads), decode)
    assert [r.tokens for r in loads] == expected


def test_a_step_has_one_patience_for_all_that_were_preempted(made, monkeypatch):
    """Every request waits while it passes."""
    prefill = made("prefill", chunk=8, transfer_mode="push", kv_patience=0.3)
    (worker,) = [worker._worker for worker in prefill.workers]
    paused = []

    def pause(request, timeout, *, patience):
        paused.append((request, timeout, patience))
        time.sleep(0.2)

    with monkeypatch.context() as patch:
        patch.setattr(worker.prefiller, "pause", pause)
        worker.hold_back(SimpleNamespace(preempted=["a", "b", "c"]))
    assert [(request, timeout) for request, timeout, _ in paused] == [(n, 120.0) for n in "abc"]
    assert 0.1 < paused[0][2] <= 0.3
    assert paused[1][2] <= 0.1
    assert paused[2][2] == 0.0


@pytest.mark.parametrize("mode", ["pull", "push"])
def test_a_prefiller_that_is_gone_is_computed_for(made, mode):
    """kv_load_failure_policy="recompute": the blocks are named bad, and the tokens are right."""
    wanted = prompts(3, seed=5)
    expected = alone(made, wanted, 4)
    prefill = made("prefill", transfer_mode=mode)
    decode = made("decode", transfer_mode=mode, kv_silence=1.0)
    answers = prefilled(prefill, wanted)
    prefill.close()
    requests = [
        decode.add(f"d{n}", p, 4, a) for n, (p, a) in enumerate(zip(wanted, answers, strict=True))
    ]
    decode.run_until(lambda: all(r.state == "over" for r in requests))
    assert [r.tokens for r in requests] == expected


def test_aborts_lose_no_block(made):
    """Before it is scheduled, while it comes, on the prefiller while it is computed."""
    prefill = made("prefill", chunk=8, transfer_mode="push")
    decode = made("decode", transfer_mode="push")
    free = sorted(prefill.free), sorted(decode.free)
    wanted = [list(range(30)), list(range(20))]
    answers = prefilled(prefill, wanted)
    decode.add("early", wanted[0], 3, answers[0])
    decode.abort("early")
    never = {**answers[1], "remote_request_id": "never"}  # as a router that mixes them up
    decode.add("coming", wanted[1], 3, never)
    decode.step()
    decode.abort("coming")
    aborted = prefill.add("aborted", list(range(40)), 1, {**REMOTE})
    prefill.step()
    prefill.abort("aborted")
    unscheduled = prefill.add("unscheduled", list(range(40)), 1, {**REMOTE})
    prefill.abort("unscheduled")
    prefill.run_until(lambda: all(r.state == "over" for r in decode.requests.values()), decode)
    prefill.run_until(lambda: aborted.state == unscheduled.state == "over")
    last = decode.add("last", wanted[1], 2, answers[1])
    decode.run_until(lambda: last.state == "over", prefill)
    prefill.run_until(lambda: all(r.state == "over" for r in prefill.requests.values()))
    assert (sorted(prefill.free), sorted(decode.free)) == free


def test_words_of_routers_that_name_no_prefiller_are_computed_for(made):
    engine = made("decode")
    expected = alone(made, [[1, 2, 3]], 2)
    odd = [
        {"do_remote_prefill": True},
        {"do_remote_prefill": True, "remote_host": "h", "remote_port": "x",
         "remote_request_id": "r"},
        {"do_remote_prefill": True, "remote_host": "h", "remote_port": 70000,
         "remote_request_id": "r"},
        {"do_remote_prefill": True, "remote_host": "h", "remote_port": 1, "remote_request_id": "r",
         "remote_block_ids": [[1], [2]]},
    ]  # fmt: skip
    requests = [engine.add(str(n), [1, 2, 3], 2, params) for n, params in enumerate(odd)]
    engine.run_until(lambda: all(r.state == "over" for r in requests))
    assert [r.tokens for r in requests] == expected * len(odd)


def nested(levels):
    found = []
    for _ in range(levels):
        found = [found]
    return found


ODD = [
    None, True, False, 0, 1, -1, 2**64, 10**5000, -(10**5000), 0.5, 1e300, float("inf"),
    float("-inf"), float("nan"), "", " ", "x", "5", "9" * 5000, "\u0665", "a\0b", "\ud800",
    "\U0001f600" * 9, "x" * 70_000, b"x", [], (), [[]], [7], [None], [True], [[None]], [[True]],
    [[-1]], [[2**64]], [[10**5000]], [[1.0]], [["1"]], [[1, 1]], [[1], [2]], [[[1]]], ["12"], [{}],
    {}, {"a": 1}, {"": 1}, nested(5000), [nested(5000)], list(range(9999)), [list(range(9999))],
]  # fmt: skip
KEYS = (
    "do_remote_prefill", "do_remote_decode", "remote_host", "remote_port", "remote_request_id",
    "transfer_id", "remote_block_ids", "transfer_mode", "tp_size", "remote_num_tokens",
    "remote_engine_id", "remote_prefill_cached_tokens",
)  # fmt: skip
GOOD = {"do_remote_prefill": True, "remote_host": "127.0.0.1", "remote_port": 1,
        "remote_request_id": "r", "remote_block_ids": [[1]]}  # fmt: skip


def odd_params():
    """Each key of a good one as each odd value, and left out; and what is no dictionary."""
    yield from (value for value in ODD if value is not None)
    for good in (GOOD, {**GOOD, "do_remote_decode": True}, REMOTE):
        for key in KEYS:
            yield {name: value for name, value in good.items() if name != key}
            yield from ({**good, key: value} for value in ODD)


@pytest.mark.parametrize("mode", ["pull", "push"])
def test_whatever_a_client_says_the_tokens_are_right(made, mode, monkeypatch):
    """It reaches the scheduler as it was written, and an error there ends the engine."""
    engine = made("decode", transfer_mode=mode, kv_lease_duration=0.05)
    from braid.kv.vllm import worker
    from braid.kv.vllm.words import told

    def ask(host, port):
        raise braid.Unavailable(f"nobody answers at {host!r:.20}:{port}")

    monkeypatch.setattr(worker, "ask", ask)
    (expected,) = alone(made, [[1, 2, 3]], 2)
    free, given = sorted(engine.free), list(odd_params())
    for begin in range(0, len(given), 30):
        some = [
            engine.add(str(begin + n), [1, 2, 3], 2, params)
            for n, params in enumerate(given[begin : begin + 30])
        ]
        engine.run_until(lambda some=some: all(r.state == "over" for r in some))
        for request, params in zip(some, given[begin:], strict=False):
            assert request.tokens == expected, told(params)
            del engine.requests[request.request_id]
    assert sorted(engine.free) == free


@pytest.mark.usefixtures("made")
def test_pages_and_ports_of_other_routers():
    from braid.kv.vllm.words import remote_of

    for port in (5600, "5600", 5600.0):
        found = remote_of({**GOOD, "remote_port": port, "transfer_id": 5}, "r")
        assert (found.host, found.port, found.request, found.pages) == (
            "127.0.0.1", 5600, "r", (1,)
        )  # fmt: skip
    for none in (None, [], ()):
        assert remote_of({**GOOD, "remote_block_ids": none}, "r").pages is None
    assert remote_of({**GOOD, "transfer_id": "t"}, "r").request == "t"
    with pytest.raises(ValueError, match=r"asked for one group of page numbers, found \[7\]"):
        remote_of({**GOOD, "remote_block_ids": [7]}, "r")


def test_a_fetch_that_fails_by_a_mistake_of_ours_is_reported(made, monkeypatch):
    """Else vLLM holds its blocks, and its client waits, for ever."""
    engine = made("decode")
    from braid.kv.vllm import worker

    def ask(*_):
        raise TypeError("a mistake")

    monkeypatch.setattr(worker, "ask", ask)
    request = engine.add("r", [1, 2, 3], 2, dict(GOOD))
    engine.run_until(lambda: request.state == "over")
    assert [request.tokens] == alone(made, [[1, 2, 3]], 2)


def test_a_door_that_nobody_opens_is_not_asked_for_every_request(monkeypatch):
    """And a request that is over is not remembered for having been cancelled."""
    stand_in.install(monkeypatch)
    from braid.kv.vllm import worker

    asked = []

    def ask(host, port):
        asked.append((host, port))
        raise braid.Unavailable("nobody answers")

    monkeypatch.setattr(worker, "ask", ask)
    settings = {"engine": {"nics": "none", "hosts": "127.0.0.1"}}
    side = worker.WorkerSide("w", settings, memory(LAYOUT), LAYOUT)
    remote = SimpleNamespace(host="gone", port=1, request="r")
    for _ in range(3):
        with pytest.raises(braid.Unavailable, match="nobody answers"):
            side._prefill(remote)
    assert asked == [("gone", 1)]
    side._cancel("r")
    assert not side._cancelled
    side.close()
