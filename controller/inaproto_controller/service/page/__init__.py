"""The page that a running controller shows to people."""
