"""Messages as records: each is described once, and cores, daemons and worlds use that."""
