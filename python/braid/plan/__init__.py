"""`braid plan`: what will communication cost?

Pure functions of a machine, a model and a question; nothing here touches a GPU or a clock, and
nothing needs the compiled module. The command line is braid.cli.plan.

    formulas/     the arithmetic, F1 to F21
    data/         links, machines, networks, models, published measurements: JSON with sources
    curve, predict, network, hardware, records, topology, models      from facts to times
    parallel/     DDP, ZeRO, FSDP, TP, PP, EP: volumes and times
    ranking, timeline, vectors, glossary                              comparisons, proofs, words
"""
