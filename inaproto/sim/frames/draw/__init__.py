"""Worlds of frames, drawn from seeds."""
