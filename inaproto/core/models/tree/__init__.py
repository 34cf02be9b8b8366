"""Trees of a model: their shape, and how one follows another."""
