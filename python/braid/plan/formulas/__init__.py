"""The arithmetic of communication: pure functions of plain numbers, one file per subject.

Units are in the names: `_bytes`, `_s`, `_us`; `_gbps` is 1e9 bytes per second and direction, as
everywhere in braid; `_gbit` is 1e9 bits per second, the unit of network data sheets. Parameters
are counts, never billions. The numbers F1 to F21 are those of docs/plan_vectors.md, where each
formula stands beside published values; data/formulas.json has each with its unit, source and date.
"""
