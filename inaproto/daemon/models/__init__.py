"""Shells around the cores of push and pull (:mod:`inaproto.core.models`): of hosts, and of servers."""
