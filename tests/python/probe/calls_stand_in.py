"""One rank of all kinds that make calls on GPUs, with CPU tensors and Gloo in place of both.

    braid run -n 2 tests/python/probe/calls_stand_in.py FOLDER

Nothing that is timed here means anything; the walk through a run does.
"""

import contextlib
import sys
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from gpu_stand_in import stand_in

from braid.bench.no_multicast import forbid_multicast
from braid.plan.parallel.block import Shape
from braid.probe import block_kind, call_kinds, session, worker
from braid.probe.block import TorchBlock
from braid.probe.player import Call
from braid.probe.publish import Output

CALL = Call("all_reduce", 1 << 16, "bfloat16")
OTHERS = [Call(op, 1 << 14, "float32") for op in ("all_gather", "reduce_scatter", "all_to_all")]
SHAPE = Shape(tokens=16, hidden=64, heads=4, kv_heads=2, head_dim=16, intermediate=32)
PAYLOAD = Call("all_reduce", SHAPE.payload_bytes(2), "bfloat16")


def block(team, players, _):
    """Of torch, on the CPU."""
    return block_kind.jobs(team, players, TorchBlock(SHAPE, 2, device="cpu"), PAYLOAD)


KINDS = {
    "tp-block": (block, block_kind.Forecast(2, PAYLOAD).figures),
    "latency": (lambda t, who, _: call_kinds.latency(t, who, CALL, 4), call_kinds.gain),
    "overlap": (lambda t, who, work: call_kinds.overlap(t, who, CALL, work), call_kinds.hidden),
    "replay": (lambda t, who, _: call_kinds.replay(t, who, [CALL, *OTHERS]), call_kinds.to_first),
}


def main():
    stand_in()
    forbid_multicast()
    torch.cuda.Stream = lambda: SimpleNamespace(wait_stream=lambda _: None)
    torch.cuda.stream = lambda _: contextlib.nullcontext()
    torch.cuda.current_stream = lambda: None
    session.GpuWorker = lambda: worker.GpuWorker(16)
    options = {"links": "shm", "tune": "off"}
    for kind, (make_jobs, figures) in KINDS.items():
        output = Output(3, 2.0, Path(sys.argv[1]) / f"{kind}.json")
        code = session.run_rank(
            session.Asked(kind, True, "nccl", output, make_jobs, figures, {}, options)
        )
        if code:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
