"""Exact sums: which elements are added in which order, and where they are rounded."""
