"""The explored tree of hosts of a model (MLNet section 3)."""
