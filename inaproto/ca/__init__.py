"""The deployment's certificate authority: who may speak with whom between machines.

:mod:`inaproto.ca.identity` is what a certificate says, :mod:`inaproto.ca.authority` makes them, and
:mod:`inaproto.ca.command` is ``inaproto ca``. The threat model: docs/security.md.
"""
