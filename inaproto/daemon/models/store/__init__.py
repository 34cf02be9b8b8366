"""A shard of a model on disk."""
