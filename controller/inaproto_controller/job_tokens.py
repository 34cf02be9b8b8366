"""Secrets by which a job's processes take their seats: random, long, and stored as hashes only."""

from __future__ import annotations

import hashlib
import secrets


def new_token() -> str:
    """256 random bits as text."""
    return secrets.token_urlsafe(32)


def hash_of(token: str) -> str:
    """SHA-256 in hex. What is random and long needs neither salt nor a slow hash."""
    return hashlib.sha256(token.encode()).hexdigest()
