"""``inaproto plan``: plans for people and for programs."""
