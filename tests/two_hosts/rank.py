"""One rank of the two-host experiment. Rank 0 is told what to do, a line at a time, and both do it:

    shares S0 S1 S2     hold the shares (fractions); without numbers: let braid plan
    calls N BYTES       N checked all_reduce calls; prints their times, shares and wrong elements
    quit

Rank 0 reads its standard input and passes each line on by broadcast; both print one JSON line per
command.
"""

import json
import sys
import time

import numpy as np

import braid


def told(comm: braid.Comm) -> list[str]:
    line = np.zeros(256, dtype=np.uint8)
    if comm.rank == 0:
        text = (sys.stdin.readline() or "quit").encode()
        line[: len(text)] = np.frombuffer(text, dtype=np.uint8)
    return bytes(comm.broadcast(line)).rstrip(b"\0").decode().split()


def calls(comm: braid.Comm, count: int, nbytes: int) -> dict[str, object]:
    index = np.arange(nbytes // 4, dtype=np.int64)
    operand = ((index * 31 + comm.rank * 7) % 1021).astype(np.float32)
    expected = sum(((index * 31 + r * 7) % 1021).astype(np.float32) for r in range(comm.size))
    out = np.empty_like(operand)
    rows = []
    wrong = 0
    for _ in range(count):
        out.fill(-1)
        comm.barrier()
        start = time.perf_counter_ns()
        comm.all_reduce(operand, out=out)
        seconds = (time.perf_counter_ns() - start) / 1e9
        wrong += int(np.count_nonzero(out != expected))
        shares = [link["share"] for link in comm.last_call()["links"]]
        rows.append({"seconds": seconds, "shares": shares})
    return {"wrong": wrong, "calls": rows, "events": comm.health()["events"][-8:]}


def main() -> None:
    with braid.init() as comm:
        while (words := told(comm)) and words[0] != "quit":
            answer: dict[str, object] = {}
            if words[0] == "shares":
                comm._force_shares([float(w) for w in words[1:]] or None)
            elif words[0] == "calls":
                answer = calls(comm, int(words[1]), int(words[2]))
            print(json.dumps(answer), flush=True)


main()
