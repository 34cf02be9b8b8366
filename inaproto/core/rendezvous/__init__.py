"""Hosts become rings: who is in a job, when its ring starts, ends, moves and recovers."""
