"""The accelerator's RTL in this process, compiled by Verilator: deterministic, and as fast as simulation
gets.

Simulated time stands still while nothing is under way, so what leaves because of a frame depends on nothing
but the frames before it.
"""
