"""Formats of files: captures, and entries of logs."""
