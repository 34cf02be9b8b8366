"""``inaproto report``: where a job was summed, what that saved, and why not more of it."""
