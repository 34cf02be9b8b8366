"""The explored migration of trees (MINA section IV-A)."""
