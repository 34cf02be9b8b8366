"""Control of the accelerator in hardware: its register map, ways to its registers, and rings in its tables.

:mod:`inaproto_adapters.fpga.bus` says what a way does; there is one to RTL in this process or in another
one, to a PCIe card (XDMA), and to LiteX designs by Ethernet (Etherbone) and UART.
:class:`~inaproto_adapters.fpga.device.FpgaDevice` drives an accelerator by any of them.
"""
