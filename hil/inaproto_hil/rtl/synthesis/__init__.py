"""Resources and clock of the RTL by open tools: Yosys, and nextpnr for Lattice's ECP5 (NetReduce section 4).

The paper's chip is a Virtex UltraScale. Yosys maps for it (``xcu``; ``xcup`` is UltraScale+), but no open
tool places and routes there. So LUT, FF and block RAM are those of that family, and the clock is an ECP5's,
which tells the long paths, and nothing about the megahertz of the paper's chip.

Before resources come ``hygiene.violations``: what must not be in the RTL whatever it costs. ``inaproto rtl
fit`` is ``command``.
"""
