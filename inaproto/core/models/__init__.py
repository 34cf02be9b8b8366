"""MLNet's push, pull and clock over trees of hosts (MLNet section 3), one idea per file."""
