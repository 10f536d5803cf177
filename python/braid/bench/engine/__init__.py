"""`braid bench engine`: the transfer engine against a plain libfabric program and NIXL, two
processes each, and between two hosts whose rails are slowed down, cut and restored.

peer.py is what runs in each process, player.py how it is spoken to; pattern.py the bytes. writes.py
measures on one host, hosts.py between two, network.py makes these.
"""
