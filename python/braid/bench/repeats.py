"""Whether a float sum has the same bits in every call, whatever part of it travels over the host
link.
"""

import random

import torch

import braid
from braid.bench.crew import Crew
from braid.record.gpu import Repeats

_ELEMENTS = 20_000_000  # 80 MB: large enough for both links
_SEED = 421


def same_bits(comm: braid.Comm, crew: Crew, device: torch.device, calls: int) -> Repeats:
    """Calls all_reduce on the same random floats, with another share of the host link each time.
    Results are registered: others may go by NVLink alone.
    """
    gpu = torch.cuda.current_device()
    generator = torch.Generator(device=device).manual_seed(_SEED + comm.rank)
    send = torch.randn(_ELEMENTS, generator=generator, device=device)
    first, again = (comm.register(torch.empty_like(send)) for _ in range(2))
    shares = random.Random(_SEED)  # noqa: S311 - the same on every rank
    comm.all_reduce(send, out=first)
    different = torch.zeros((), dtype=torch.int64, device=device)
    num_shared = 0
    for _ in range(calls):
        comm._force_host_share(gpu, "all_reduce", shares.choice((0.0, shares.random() * 0.3)))
        num_shared += host_share(comm, send.nbytes) > 0
        comm.all_reduce(send, out=again)
        different += (again.view(torch.int32) != first.view(torch.int32)).any()
    comm._force_host_share(gpu, "all_reduce", None)
    for result in (first, again):
        comm.unregister(result)
    if num_shared < calls // 3:
        raise RuntimeError(f"{num_shared} of {calls} calls used the host link: nothing was shown")
    return Repeats(
        f"all_reduce of {_ELEMENTS} random floats, random share over the host link",
        calls,
        crew.total(int(different)),
    )


def host_share(comm: braid.Comm, nbytes: int) -> float:
    """What the host link carries of the next all_reduce into registered memory."""
    plan = comm.explain("all_reduce", nbytes, on="gpu").json
    if plan["path"] != "copy engines":
        return 0.0
    return next(float(link["share"]) for link in plan["links"] if link["name"] == "pcie")
