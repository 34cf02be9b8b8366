"""Hosts of the world of frames."""
