"""Runs of the world of frames: logged, replayed, shrunk, drawn as diagrams."""
