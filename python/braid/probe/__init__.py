"""`braid bench KIND`: what single links, moments and sequences cost.

Kinds over lanes, which copy bytes from one memory to another, need no ranks: p2p, host,
interference, engine. Kinds over players, which make collective calls, do: latency, overlap,
replay. On GPUs lanes are torch's copies; between CPUs they are memory copies and braid's links.
"""
