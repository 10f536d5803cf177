"""No multicast objects: torch makes them with symmetric memory unless it is told not to."""

import os

NO_MULTICAST = "TORCH_SYMM_MEM_DISABLE_MULTICAST"


def forbid_multicast() -> None:
    """For this process and those that it starts. Called before torch comes in."""
    os.environ[NO_MULTICAST] = "1"
