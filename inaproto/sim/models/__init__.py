"""The deterministic overlay world: push, pull and clock over trees of hosts, under every fault (MLNet).

Beside :mod:`inaproto.sim.frames.world`, whose subject is frames, and :mod:`inaproto.sim.control`, whose
subject is who may use the switches, this one has workers, hosts and parameter servers, connections that are
late and break, and disks. The cores are the product's own (:mod:`inaproto.core.models`). Gradients are such
that weights reveal which updates are in them, and every weight that any worker gets is looked at.
"""
