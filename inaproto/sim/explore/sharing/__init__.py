"""The explored sharing group (MINA section IV-B)."""
