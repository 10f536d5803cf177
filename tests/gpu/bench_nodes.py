"""`braid bench nodes` where ranks of one GPU are nodes of two: braid run -n 4 FILE ARGS."""

import os
import sys

RANK = int(os.environ["RANK"])
os.environ["NCCL_HOSTID"] = f"host{RANK}"
os.environ["BRAID_HOST_ID"] = f"node{RANK // 2}"

from braid.cli.app import main  # noqa: E402

sys.argv = ["braid", "bench", "nodes", *sys.argv[1:]]
main()
