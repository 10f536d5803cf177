"""Families of models: which parameters their layers have, and what those cache.

A family is a row of traits (traits.py) in one of four tables. Its sum is tested against the counts
of published checkpoints, so that what follows from it may be called exact. A config of a family
that has no row is counted as Llama's kin, which is assumed, or refused where a field says that its
layers are something else.
"""

from braid.plan.families import dense, hybrid, mixture, older
from braid.plan.families.traits import Traits

FAMILIES: dict[str, Traits] = {
    **dense.FAMILIES,
    **mixture.FAMILIES,
    **hybrid.FAMILIES,
    **older.FAMILIES,
}
