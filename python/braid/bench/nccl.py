"""NCCL through torch.distributed: as torch sets it up, and at its best.

Its settings belong to a communicator, so each setting has a process group of its own: all of them
run in one process, in turn with braid. What the environment says (NCCL_ variables) holds for all.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from braid.bench.contestant import Contestant, Shelf
from braid.bench.crew import Crew
from braid.bench.pattern import Data
from braid.cases.gpu import GpuCase
from braid.launch import free_port

_MIN_CTAS = 32
_COPY_ENGINE_OPS = ("all_gather", "all_to_all")
_SYMMETRIC_OPS = ("all_gather", "all_reduce", "reduce_scatter", "all_to_all")


def join(crew: Crew, timeout_s: float) -> None:
    """The default process group, with torch's defaults. Collective."""
    port = crew.agree(free_port() if crew.rank == 0 else 0)[0]
    dist.init_process_group(
        "nccl",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=crew.rank,
        world_size=crew.size,
        timeout=timedelta(seconds=timeout_s),
    )
    _connect(None)


def leave() -> None:
    """Ends every process group."""
    if dist.is_initialized():
        dist.destroy_process_group()


def group_with(timeout_s: float, **settings: int) -> Any:  # noqa: ANN401 - torch has no types here
    """One more communicator of all ranks, with NCCL settings of its own. Collective."""
    timeout = timedelta(seconds=timeout_s)
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout
    for name, value in settings.items():
        if not hasattr(options.config, name):
            raise RuntimeError(f"torch {torch.__version__} has no NCCL setting {name}")
        setattr(options.config, name, value)
    group = dist.new_group(backend="nccl", pg_options=options, timeout=timeout)
    _connect(group)
    return group


def zero_cta() -> dict[str, int]:
    """The policy that leaves copying to the copy engines."""
    policy = getattr(dist.ProcessGroupNCCL, "NCCL_CTA_POLICY_ZERO", None)
    if policy is None:
        raise RuntimeError(f"torch {torch.__version__} does not know NCCL's zero-CTA policy")
    return {"cta_policy": int(policy)}


def min_ctas() -> dict[str, int]:
    """What NCCL_MIN_CTAS=32 sets; NCCL 2.28 refuses a least without a most in a config."""
    return {"min_ctas": _MIN_CTAS, "max_ctas": _MIN_CTAS}


def _connect(group: object) -> None:
    """A first call, which makes the communicator."""
    dist.all_reduce(torch.ones(1, device="cuda"), group=group)
    torch.cuda.synchronize()


class Windows:
    """Memory that NCCL allocated and registered as symmetric windows on some groups: both buffers
    of a case, in one pool.
    """

    def __init__(self, groups: list[Any], device: torch.device) -> None:
        backends = [group._get_backend(device) for group in groups]

        def make(nbytes: int) -> tuple[torch.Tensor, Callable[[], None]]:
            pool = torch.cuda.MemPool(backends[0].mem_allocator)
            with torch.cuda.use_mem_pool(pool):
                buffer = torch.empty(nbytes, dtype=torch.uint8, device=device)
            registered: list[Any] = []

            def release() -> None:
                torch.cuda.synchronize()
                while registered:
                    registered.pop().deregister_mem_pool(pool)

            try:
                for backend in backends:
                    backend.register_mem_pool(pool, symm=True)
                    registered.append(backend)
            except RuntimeError:
                release()
                raise

            return buffer, release

        self.send, self.out = Shelf(make), Shelf(make)

    def drop(self) -> None:
        """Gives the memory back. Collective."""
        self.send.drop()
        self.out.drop()


class Nccl(Contestant):
    """One communicator. torch's all_reduce and broadcast are in place."""

    works_in_place = True

    def __init__(
        self,
        name: str,
        baseline: str,
        group: object,
        send: Shelf,
        out: Shelf,
        *,
        zero: bool = False,
        symmetric: bool = False,
    ) -> None:
        self.name, self.group = name, baseline
        self._comm, self._zero, self._symmetric = group, zero, symmetric
        self._send_shelf, self._out_shelf = send, out
        self._call: Any = None

    def is_for(self, op: str) -> bool:
        """NCCL's copy engines take what needs no arithmetic. In windows three operations have
        symmetric kernels, and an all_to_all is faster by its peers' memory (records/
        gpu_before_lookahead_2.json: 388 us instead of 472 at 256 MiB). A broadcast of 4 MiB never
        ended there (NCCL 2.28.9 on 2 H200).
        """
        if self._zero:
            return op in _COPY_ENGINE_OPS
        return not self._symmetric or op in _SYMMETRIC_OPS

    def shelves(self, case: GpuCase) -> dict[Shelf, int]:
        """The memory it uses."""
        sent, got = case.send_count * case.itemsize, case.out_count * case.itemsize
        return {self._send_shelf: sent, self._out_shelf: got}

    def prepare(self, case: GpuCase, data: Data, rank: int) -> None:
        """Takes buffers, fills what is sent, makes the call."""
        self.send = self._send_shelf.take(case.send_count * case.itemsize, data.dtype)
        self.out = self._out_shelf.take(case.out_count * case.itemsize, data.dtype)
        data.fill(self.send, rank)
        send, out, group = self.send, self.out, self._comm
        calls: dict[str, Callable[[], Any]] = {
            "all_gather": lambda: dist.all_gather_into_tensor(out, send, group=group),
            "all_reduce": lambda: dist.all_reduce(out, group=group),
            "reduce_scatter": lambda: dist.reduce_scatter_tensor(out, send, group=group),
            "all_to_all": lambda: dist.all_to_all_single(out, send, group=group),
            "broadcast": lambda: dist.broadcast(out, case.root, group=group),
        }
        self._call = calls[case.op]

    def run(self) -> None:
        """Enqueues one call."""
        self._call()

    def let_go(self) -> None:
        """Forgets its buffers."""
        super().let_go()
        self._call = None
