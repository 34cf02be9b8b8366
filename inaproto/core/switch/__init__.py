"""The accelerator in a switch: it takes packets in, sums them, and sends results (NetReduce section 3)."""
