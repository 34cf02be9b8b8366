"""The explored ring: hosts and an accelerator (NetReduce sections 3.1 and 3.2)."""
