"""Exhaustive exploration of small worlds: every interleaving, every fault within a budget.

:mod:`~inaproto.sim.explore.engine` searches any world; :mod:`~inaproto.sim.explore.ring.world` is that of
hosts and an accelerator. How to add a world is in the engine's text.
"""
