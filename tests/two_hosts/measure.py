"""Measures the two-host figures and writes records/two_hosts.json.

    sudo .venv/bin/python tests/two_hosts/measure.py [--bytes N] [--out records/two_hosts.json]

All-reduce of 64 MiB between two ranks, one a host, over rails of 800, 400 and 200 Mbit/s:
each rail alone, all together, the third one slowed to 100 while running, the second one cut and
mended while running. Payload per rank and direction of a 2-rank all_reduce is the buffer's size, so
bytes by time is the rails' rate.
"""

import argparse
import json
import statistics
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from rails import Rails, why_not

RATES_MBIT = [800, 400, 200]
HERE = Path(__file__).parent


class Pair:
    """The two ranks, told what to do."""

    def __init__(self, rails: Rails, **options: str) -> None:
        self.ranks = rails.start(HERE / "rank.py", **options)

    def tell(self, line: str) -> list[dict[str, Any]]:
        stdin = self.ranks[0].stdin
        assert stdin is not None
        stdin.write(line + "\n")
        stdin.flush()
        return [self._answer(rank) for rank in self.ranks]

    @staticmethod
    def _answer(rank: subprocess.Popen[str]) -> dict[str, Any]:
        assert rank.stdout is not None
        line = rank.stdout.readline()
        if not line:
            raise RuntimeError(f"a rank ended with code {rank.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def quit(self) -> None:
        stdin = self.ranks[0].stdin
        assert stdin is not None
        stdin.write("quit\n")
        stdin.flush()
        for rank in self.ranks:
            if rank.wait(timeout=30) != 0:
                raise RuntimeError("a rank failed")


def slowest(answers: list[dict[str, Any]]) -> list[float]:
    """Seconds of each call, the slower rank's."""
    return [
        max(pair)
        for pair in zip(*([c["seconds"] for c in a["calls"]] for a in answers), strict=True)
    ]


def mbit(nbytes: int, seconds: float) -> float:
    return nbytes * 8 / seconds / 1e6


class Experiment:
    def __init__(self, rails: Rails, nbytes: int, window: int, tune_time: str) -> None:
        self.rails = rails
        self.nbytes = nbytes
        self.window = window
        self.pair = Pair(
            rails,
            balance_window=str(window),
            tune_time=tune_time,
            tune="force",
            timeout="30s",
            cache_dir="/tmp/braid-two-hosts",
        )
        self.wrong = 0

    def calls(self, count: int) -> tuple[list[float], list[list[float]]]:
        answers = self.pair.tell(f"calls {count} {self.nbytes}")
        self.wrong += sum(a["wrong"] for a in answers)
        self.events = answers[0]["events"]
        return slowest(answers), [c["shares"] for c in answers[0]["calls"]]

    def rate(self, seconds: list[float]) -> float:
        return mbit(self.nbytes, statistics.median(seconds))

    def alone(self) -> list[dict[str, Any]]:
        rows = []
        for rail in range(len(RATES_MBIT)):
            self.pair.tell(
                "shares " + " ".join("1" if i == rail else "0" for i in range(len(RATES_MBIT)))
            )
            seconds, _ = self.calls(3)
            rows.append(
                {
                    "rail": rail,
                    "set_mbit": RATES_MBIT[rail],
                    "mbit": self.rate(seconds),
                    "seconds": seconds,
                }
            )
        self.pair.tell("shares")
        return rows

    def together(self, count: int) -> dict[str, Any]:
        seconds, shares = self.calls(count)
        return {"mbit": self.rate(seconds), "seconds": seconds, "shares": shares[-1]}

    def slowed(self) -> dict[str, Any]:
        """The third rail at 100 Mbit/s: ten windows to find the new balance, five to measure."""
        self.rails.set_rate(2, 100)
        finding, shares = self.calls(10 * self.window)
        after = self.together(5 * self.window)
        return {
            "finding_seconds": finding,
            "finding_shares": shares,
            "after": after,
            "events": self.events,
        }

    def cut_and_mended(self) -> dict[str, Any]:
        """The second rail pulled in the middle of a call, and back some calls later."""
        pull = threading.Timer(0.15, self.rails.cut, (1,))
        pull.start()
        without, shares_without = self.calls(12)
        if shares_without[-1][1] > 0:  # on a loaded machine they end before it is pulled
            pull.join()
            seconds, shares = self.calls(12)
            without, shares_without = without + seconds, shares_without + shares
        self.rails.mend(1)
        time.sleep(3)  # TCP tries again when its timer says so
        back, shares_back = self.calls(25)
        return {
            "without_seconds": without, "without_shares": shares_without,
            "back_seconds": back, "back_shares": shares_back, "events": self.events,
        }  # fmt: skip


def judge(record: dict[str, Any]) -> dict[str, Any]:
    alone = sum(row["mbit"] for row in record["alone"])
    nominal = float(sum(RATES_MBIT))
    slow_sum = nominal - 100
    lost = record["cut"]["without_shares"]
    return {
        "together_of_sum_alone": record["together"]["mbit"] / alone,
        "together_of_nominal": record["together"]["mbit"] / nominal,
        "slowed_of_new_nominal": record["slowed"]["after"]["mbit"] / slow_sum,
        "share_of_cut_rail_before_after_back": [
            record["together"]["shares"][1],
            lost[-1][1],
            record["cut"]["back_shares"][-1][1],
        ],
        "wrong_elements": record["wrong"],
    }


def measure(nbytes: int, window: int, calls: int, tune_time: str = "8s") -> dict[str, Any]:
    with Rails(RATES_MBIT) as rails:
        run = Experiment(rails, nbytes, window, tune_time)
        record: dict[str, Any] = {"alone": run.alone(), "together": run.together(calls)}
        record["slowed"] = run.slowed()
        rails.set_rate(2, RATES_MBIT[2])
        run.calls(5 * window)
        record["cut"] = run.cut_and_mended()
        record["wrong"] = run.wrong
        run.pair.quit()
    record["verdict"] = judge(record)
    return record


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bytes", type=int, default=64 << 20)
    parser.add_argument("--window", type=int, default=5)
    parser.add_argument("--calls", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path("records/two_hosts.json"))
    args = parser.parse_args()
    reason = why_not()
    if reason:
        print(f"skipped: {reason}")
        return 77
    from braid.bench import facts

    commit, dirty = facts.commit()
    record: dict[str, Any] = {
        "schema": "braid.two_hosts/1",
        "command": " ".join(sys.argv),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit,
        "dirty": dirty,
        "ranks": 2,
        "op": "all_reduce",
        "bytes": args.bytes,
        "dtype": "float32",
        "rails_mbit": RATES_MBIT,
        "balance_window": args.window,
    }
    record |= measure(args.bytes, args.window, args.calls)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(record["verdict"], indent=1))
    return 1 if record["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
