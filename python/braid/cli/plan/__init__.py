"""`braid plan`: the command line of braid.plan.

One file per group of commands; options.py has what they share, show.py and chart.py print.
"""

from braid.cli.plan.app import app

__all__ = ["app"]
