"""The world as inaproto's ports see it: one package per adapter, found by entry point.

Adapters do not import each other; they meet in :mod:`inaproto.ports`, and one contract suite per kind
(``tests/contract``) runs against all of them.
"""
