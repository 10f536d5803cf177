"""python -m braid.cli: the command `braid`."""

from braid.cli import main

main()
