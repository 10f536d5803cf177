"""Which process a rank is, and whether it still runs, as far as ranks of its host can see.

A rank that is killed writes no word. Once there are connections they close; before that the other
ranks of its host can ask the kernel.
"""

import os
from contextlib import suppress
from pathlib import Path

from braid.this_host import boot_id

_ENDED_STATES = "ZX"  # nobody has waited for it yet: it has ended all the same


def own_process() -> str:
    """For other ranks: its PID namespace, number and start. "" where the kernel does not say."""
    with suppress(OSError, ValueError):
        return f"{_namespace()}:{os.getpid()}:{_state_and_start(os.getpid())[1]}"
    return ""


def has_ended(process: str) -> bool:
    """Whether it is known to: never of one in another PID namespace, such as another host's."""
    try:
        namespace, number, start = process.split(":")
        pid = int(number)
        if namespace != _namespace() or pid <= 0:
            return False
        os.kill(pid, 0)
        state, own_start = _state_and_start(pid)
    except ProcessLookupError:
        return True
    except (OSError, ValueError, OverflowError):  # no name, or another user hides it
        return False
    return state in _ENDED_STATES or own_start != start  # its number is another one's


def _namespace() -> str:
    """Of this boot of this host: namespaces are numbered anew in each."""
    return f"{boot_id()}/{os.stat('/proc/self/ns/pid').st_ino}"


def _state_and_start(pid: int) -> tuple[str, str]:
    """The process's state, and when it began, in ticks since the boot."""
    # Its name, in brackets, may hold anything.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return fields[0], fields[19]
