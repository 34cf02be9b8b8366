"""Installations on this machine that tests, benches and demos run on."""
