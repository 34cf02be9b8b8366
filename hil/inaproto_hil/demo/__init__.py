"""``inaproto demo``: its acts."""
