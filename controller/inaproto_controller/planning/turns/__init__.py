"""Whose turn is next on a pool, and what turns do to training steps (MINA section III-D)."""
