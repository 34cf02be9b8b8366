"""Sharing groups at the controller."""
