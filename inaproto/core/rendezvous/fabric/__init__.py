"""Rings over several switches: which switch is told what."""
