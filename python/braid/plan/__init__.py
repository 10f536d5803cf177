"""`braid plan`: what will communication cost?

Pure functions of a machine, a model and a question; nothing here touches a GPU or a clock, and
nothing needs the compiled module. The command line is braid.cli.plan.

    formulas/     the arithmetic, F1 to F21
    data/         links, machines, networks, models, published measurements: JSON with sources
    hardware, network, models, records, topology    what there is, from tables and from files
    curve, protocols, predict                       from that to times
    parallel/     DDP, ZeRO, FSDP, TP, PP, EP: volumes and times
    ranking, layouts, timeline, chart               comparisons and pictures
    show                                            answers on the terminal
    vectors, published, trial, glossary             proofs and words
"""
