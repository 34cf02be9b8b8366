"""Switches of a tree that sum for one ring together (NetReduce section 3.3)."""
