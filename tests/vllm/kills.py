"""Real vLLM on CPUs, one engine prefills, another one decodes, and one of them is killed or stopped
at a random moment while six prompts go from one to the other.

    kills.py --moments 50 --json FILE

What must hold each time: all tokens are those of one engine alone (the decoder computes what it
does not get, a decoder that was killed is started anew and asked again); nobody waits longer than a
limit; the side that was left serves the next prompts; in the end no page is held for anybody.
scripts/test_vllm makes the environment.
"""

import argparse
import json
import random
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import model
from run import REMOTE, ROOT, Ended, Server, connector, prompts_of, record_of, same

_SILENCE_S, _LEASE_S = 4.0, 8.0
_LIMIT_S = 120.0
"""For what must not hang: silence, lease and computing anew take 20 s beside other work."""
_TOKENS, _PROMPTS = 8, 6
_TCP = {"engine": {"nics": ["tcp:127.0.0.1"], "hosts": "127.0.0.1", "local": False}}


class Job:
    """A prefiller and a decoder, of which either may be started anew."""

    def __init__(self, folder: Path, mode: str, way: str) -> None:
        self.mode, self.way, self._folder = mode, way, folder
        self.sides = {name: self._started(name) for name in ("prefiller", "decoder")}
        for side in self.sides.values():
            side.answer(_LIMIT_S)
        self.span_s = 2.0
        """How long a request takes, about: strikes fall within it."""

    def _started(self, name: str) -> Server:
        more = {"kv_silence": _SILENCE_S, "kv_lease_duration": _LEASE_S}
        engine = _TCP if self.way == "tcp" else {}
        settings = connector(self.mode, **more, **engine)
        return Server(f"{name}-{self.mode}-{self.way}", self._folder, 1, settings)

    def again(self, name: str) -> None:
        """Started anew, if it was killed."""
        self.sides[name].kill()
        self.sides[name] = self._started(name)
        self.sides[name].answer(_LIMIT_S)

    def serve(self, prompts: list[list[int]]) -> dict[str, Any]:
        """As a router does: a prefiller that is gone is left out, a decoder is replaced."""
        params: list[Any] = [None] * len(prompts)
        try:
            remote = [dict(REMOTE) for _ in prompts]
            self.sides["prefiller"].tell(prompts=prompts, max_tokens=1, params=remote)
            params = self.sides["prefiller"].answer(_LIMIT_S)["params"]
        except Ended:
            self.again("prefiller")
        order = {"prompts": prompts, "max_tokens": _TOKENS, "params": params}
        try:
            self.sides["decoder"].tell(**order)
            return self.sides["decoder"].answer(_LIMIT_S)
        except Ended:
            self.again("decoder")
        self.sides["decoder"].tell(**order)
        return self.sides["decoder"].answer(_LIMIT_S)

    def end(self) -> None:
        for side in self.sides.values():
            side.end()


def strike(job: Job, who: str, how: str, rng: random.Random) -> threading.Thread:
    """Kills or stops it in a while, on a thread of its own."""
    victim = job.sides[who]
    wait_s, stop_s = rng.uniform(0, job.span_s), rng.uniform(0.5, 2 * _SILENCE_S)

    def run() -> None:
        time.sleep(wait_s)
        victim.signal(signal.SIGKILL if how == "kill" else signal.SIGSTOP)
        if how == "stop":
            time.sleep(stop_s)
            victim.signal(signal.SIGCONT)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def moment(job: Job, seed: int, expected: list[dict[str, Any]]) -> dict[str, Any]:
    """One of them, and how the pair serves behind it. `expected`: of both."""
    rng = random.Random(seed)
    who, how = ("prefiller", "decoder")[seed % 2], ("kill", "stop")[seed // 2 % 2]
    began = time.monotonic()
    thread = strike(job, who, how, rng)
    struck = job.serve(prompts_of(_PROMPTS, 100 + seed))
    thread.join()
    took_s = time.monotonic() - began
    if how == "kill":
        job.again(who)  # the strike may have come behind the answer
    began = time.monotonic()
    after = job.serve(prompts_of(_PROMPTS, 900 + seed))
    job.span_s = 0.8 * job.span_s + 0.2 * (time.monotonic() - began)
    return {
        "mode": job.mode,
        "way": job.way,
        "side": who,
        "how": how,
        "seed": seed,
        "same": [same(struck, expected[0]), _PROMPTS],
        "same_after": [same(after, expected[1]), _PROMPTS],
        "seconds": round(took_s, 2),
    }


def held_at_the_end(job: Job) -> int:
    """Pages that somebody holds when every lease is over."""
    until = time.monotonic() + 4 * _LEASE_S
    while True:
        found = sum(side.ask(held=1)["held"] for side in job.sides.values())
        if found == 0 or time.monotonic() > until:
            return int(found)
        time.sleep(0.5)


def expected_of(folder: Path, moments: int) -> list[list[dict[str, Any]]]:
    """What one engine alone gives for every moment's prompts."""
    plain = Server("plain", folder, 1, None)
    try:
        plain.answer()
        return [
            [plain.generate(prompts_of(_PROMPTS, at + seed), _TOKENS) for at in (100, 900)]
            for seed in range(moments)
        ]
    finally:
        plain.end()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--moments", type=int, default=50, help="half pulled, half pushed over tcp")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    folder = model.make(ROOT / "build/vllm-model")
    expected = expected_of(folder, options.moments)
    runs: list[dict[str, Any]] = []
    half = (options.moments + 1) // 2
    for mode, way, seeds in (
        ("pull", "local", range(half)),
        ("push", "tcp", range(half, options.moments)),
    ):
        job = Job(folder, mode, way)
        try:
            for seed in seeds:
                runs.append(moment(job, seed, expected[seed]))
                print(f"test_vllm: {json.dumps(runs[-1])}", flush=True)
            runs.append({"mode": mode, "way": way, "held_at_the_end": held_at_the_end(job)})
            print(f"test_vllm: {json.dumps(runs[-1])}", flush=True)
        finally:
            job.end()
    if options.json:
        record = record_of(runs, "braid.vllm_kills/1")
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    wrong = [
        run
        for run in runs
        if run.get("held_at_the_end")
        or any(run[key][0] != run[key][1] for key in ("same", "same_after") if key in run)
    ]
    print("test_vllm:", f"FAILED: {wrong}" if wrong else f"{len(runs)} runs, nothing wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
