"""``inaproto bench paring-live``: drawn jobs on an irregular network of switch daemons, placed by PARING."""
