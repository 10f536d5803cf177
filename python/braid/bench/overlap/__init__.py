"""`braid bench overlap`: GEMMs that communicate, measured."""
