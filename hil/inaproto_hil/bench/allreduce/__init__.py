"""``inaproto bench allreduce``: all-reduces through daemons or in the deterministic world."""
