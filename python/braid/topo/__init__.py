"""What a machine is made of and how its parts are joined: `braid topo`.

facts.py is the model; read/ fills it from a live machine or a saved file; paths, roles, rates and
verdicts follow from it; show/ draws it. Nothing here needs a GPU or the compiled part of braid.
"""
