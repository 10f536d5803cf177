"""The command `braid`: run, bench, demo, options.

Exit codes: 0 fine, 1 a run failed, 2 wrong arguments.
"""

from braid.cli.app import main

__all__ = ["main"]
