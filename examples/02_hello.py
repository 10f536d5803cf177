"""The smallest braid program: every rank learns every rank's number.

Run: braid run -n 4 examples/02_hello.py
"""

import numpy as np

import braid

with braid.init() as comm:
    numbers = comm.all_gather(np.array([comm.rank]))
    total = comm.all_reduce(np.array([comm.rank]))
    if comm.rank == 0:
        print(f"{comm.size} ranks are here: {numbers.tolist()}, their sum is {total[0]}")
        print(comm.explain("all_reduce", 64 << 20))
