"""Host memory beside that of the GPUs."""

from collections.abc import Iterator

from braid.topo.look import View
from braid.topo.verdicts.verdict import Verdict


def little_memory(view: View) -> Iterator[Verdict]:
    """Less than one GPU has. A virtual machine may be shown more later: the kernel counts what is
    plugged in now, so this is a note.
    """
    nodes = [node.memory_gib for node in view.machine.numa]
    known = [gib for gib in nodes if gib is not None]
    most = max((gpu.memory_gib or 0.0 for gpu in view.machine.gpus), default=0.0)
    if known and len(known) == len(nodes) and sum(known) < most:
        yield Verdict(
            "host-memory",
            "note",
            f"the host shows {sum(known):g} GiB of memory, less than one GPU's {most:g} GiB",
            [],
            "a virtual machine may be given more while it runs: look at free -h under load",
        )


QUESTIONS = (little_memory,)
