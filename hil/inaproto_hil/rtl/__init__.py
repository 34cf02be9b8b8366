"""The accelerator in hardware: synthesizable RTL in Amaranth (NetReduce sections 3 and 4), one block a file.

It needs the extra ``rtl`` of the package; nothing else in inaproto imports it. docs/accelerator.md has the
block diagram, and says what is proved.
"""
