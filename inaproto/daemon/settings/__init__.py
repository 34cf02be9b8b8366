"""Configuration files of the daemons."""
