"""Shells around the cores of push and pull (:mod:`inaproto.core.push_pull`): of hosts, and of servers."""
