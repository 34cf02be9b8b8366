"""Captures of what crosses a switch's ports."""
