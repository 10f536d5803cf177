"""`braid bench nodes` on one machine, ranks in turn on two nodes or more: braid run -n 4 FILE ARGS.

BENCH_NODE_RANKS (2) ranks are a node. Where ranks share a GPU each is a host of its own to NCCL;
else NCCL's hosts are the nodes, so that it has NVLink inside them as braid has.
"""

import os
import sys

RANK = int(os.environ["RANK"])
NODE = RANK // int(os.environ.get("BENCH_NODE_RANKS", "2"))


def num_gpus() -> int:
    """Without CUDA, which would read the variables below too early."""
    return sum(name.removeprefix("nvidia").isdigit() for name in os.listdir("/dev"))


has_own_gpu = num_gpus() >= int(os.environ["WORLD_SIZE"])
os.environ["NCCL_HOSTID"] = f"node{NODE}" if has_own_gpu else f"host{RANK}"
os.environ["BRAID_HOST_ID"] = f"node{NODE}"

from braid.cli.app import main  # noqa: E402

sys.argv = ["braid", "bench", "nodes", *sys.argv[1:]]
main()
