"""``inaproto top``: what the daemons do, as it changes."""
