"""Packages of other names that are braid: a folder of this one is put on the path in front of the
real one (braid deepep-env), and nothing here is imported otherwise.
"""
