"""Aggregation trees that move under running jobs (MINA section IV-A)."""
