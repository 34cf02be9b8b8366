"""Streams, sockets, TLS and control messages: what all daemons speak through."""
