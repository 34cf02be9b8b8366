"""The deterministic control world: who may use the switches when, decided under every fault.

Beside :mod:`inaproto.sim.frames.world`, whose subject is frames, this one has a controller, hosts, switches
with slots and pools, a durable store and a network that loses, repeats and reorders what the control plane
says. The cores that decide are the product's own: sharing by two-phase commit (MINA section IV-B) and
migration of aggregation trees (section IV-A). All-reduces are events in it: they begin, run for a drawn
time on one of two paths, and end with a sum that every seat must have.
"""
