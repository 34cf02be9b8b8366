"""``inaproto bench peers``: all-reduces by inaproto's daemons, beside those of other systems."""
