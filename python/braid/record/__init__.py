"""Records: what `braid bench --json` writes, and the only source of numbers in the documentation.

A record holds everything that is needed to judge a number without the machine: how it was made,
on what, every sample, what it was compared with in the same run. `bench` is the form of
collectives between CPUs, `gpu` of those on GPUs (`old_gpu` of its first age), `probe` of the kinds
of `braid bench KIND`. `form` reads and checks all of them, `parts` is what they have alike, `ranks`
says who held the others up. Nothing here measures.
"""
