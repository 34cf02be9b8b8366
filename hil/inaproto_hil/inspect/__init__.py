"""``inaproto inspect``: which packet of a capture is the first that breaks a rule, and why."""
