"""Ranks of benchmarks that compare systems: one loop, whatever adds up.

A peer of inaproto runs by a Python of its own, which has numpy and nothing of inaproto. So the modules here
import numpy and each other alone, but for ``daemons``.
"""
