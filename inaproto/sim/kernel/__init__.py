"""Virtual time: what all deterministic worlds have in common."""
