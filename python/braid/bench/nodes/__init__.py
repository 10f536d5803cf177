"""`braid bench nodes`: collectives over several nodes, on the ranks of an enclosing launch."""
