"""The host daemon: training processes on one side, a NIC and the switch on the other."""
