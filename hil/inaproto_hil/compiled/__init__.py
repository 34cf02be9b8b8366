"""Simulated worlds at twice the speed: the same modules, compiled by mypyc into a cache folder.

Pure Python is the product; a campaign of thousands of worlds may run a compiled copy of it instead.
``rewrite`` makes source that mypyc takes, ``build`` and its child process ``extensions`` compile it,
``check`` compares what the copy does with what the source does, and ``choice`` decides which of the two a
campaign uses, and says why.
"""
