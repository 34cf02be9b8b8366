"""One engine for each path that an all-reduce can go by."""
