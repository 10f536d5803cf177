"""One page about a machine: what is in it, what its links gave, and how that was measured.

runs.py reads records into curves and shares, chart.py and page.py draw them. The page has no
scripts and asks nothing of the network.
"""
