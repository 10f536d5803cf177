"""What is measured: an operation at a size, its data, and the result that it must have.

`host` is between CPUs, `gpu` on GPUs; `operations` has what both are made of.
"""
