"""Tokens of jobs: who may be which ranks of a job, on which host, until when.

The controller issues them, one for each job, when it takes the job in. They are checked in two places, and
neither asks the controller: the root of the switches, if it has the secret, checks every rank that joins or
comes back (``TokenIssuer.check``); a host that has a seat of the job knows the hash of its token
(``hash_of``), by which it can refuse a process, and nobody can make a token.

A token is text that a process shows as the ``key`` of its job. It is its own evidence: an HMAC-SHA256 by the
deployment's secret over what it grants. That rather than a random number whose hash somebody keeps,
because the root of the switches has to check it at a moment when the controller that gave it may be down, and
after a restart of either; there is nothing to look up, to replicate or to fill. The price: whoever has the
secret can grant anything (it lies in one file, 0600), and a token cannot be taken back before it ends, so it
shall end with the job, and names the host where it is worth something.

Invariants: what is granted is all under the MAC, MACs are compared in constant time, before anything of a
token is believed; of two tokens, ranks are of the same job only if job, size and nonce are the same.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from inaproto.core.rendezvous.rules import job_name
from inaproto.errors import DecodeError, LocalMisuse

PREFIX: Final = "ina1."
SECRET_BYTES_MIN: Final = 32
NAME_BYTES_MAX: Final = 128
"""Bytes of job and host together: so every token fits where a key does (256 bytes)."""
_FIXED: Final = struct.Struct(">QQHHHB")
_MAC_BYTES: Final = 32
_NONCE_MAX: Final = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Grant:
    """Ranks ``[first, until_rank)`` of a job of ``size`` ranks, on ``host`` (empty: on any)."""

    job: str
    size: int
    first: int
    until_rank: int
    expires_s: int
    """UNIX time, seconds."""
    nonce: int
    """Number of this run, 64 bits, drawn when it was admitted: tokens of an earlier one are of another."""
    host: str = ""

    def __post_init__(self) -> None:
        names = len(self.job.encode()) + len(self.host.encode())
        if not self.job or names > NAME_BYTES_MAX:
            raise LocalMisuse(f"token: job and host take {names} bytes, 1 to {NAME_BYTES_MAX} are possible")
        if not 0 <= self.first < self.until_rank <= self.size < 1 << 16:
            raise LocalMisuse(f"token: no ranks {self.first} to {self.until_rank} of {self.size}")
        if not 0 <= self.expires_s < 1 << 64 or not 0 <= self.nonce <= _NONCE_MAX:
            raise LocalMisuse("token: expiry and nonce are numbers of 64 bits")

    @property
    def job_key(self) -> str:
        """What all ranks of this run of the job show in common; it grants nothing."""
        return f"run {self.nonce:016x} of {self.size}"


@dataclass(frozen=True, slots=True)
class Refusal:
    """``code`` is stable, for counters."""

    code: str
    reason: str


@dataclass(frozen=True)
class TokenIssuer:
    """Makes and checks tokens. ``secrets``: the first makes them, all are good for a check (rotation)."""

    secrets: Sequence[bytes] = field(repr=False)

    def __post_init__(self) -> None:
        if not self.secrets or any(len(secret) < SECRET_BYTES_MIN for secret in self.secrets):
            raise LocalMisuse(f"token: a secret has at least {SECRET_BYTES_MIN} bytes")

    def issue(self, grant: Grant) -> str:
        body = _body(grant)
        return PREFIX + _text(body + _mac(self.secrets[0], body))

    def check(
        self, token: str, *, job: str, rank: int, size: int, host: str, now_s: float
    ) -> Grant | Refusal:
        """What ``token`` grants, if it lets ``rank`` of ``job`` join on ``host`` now.

        Parallel rings of a job, and what goes on of it without a lost rank, are that job. Of the latter the
        ranks are numbered anew: the rendezvous knows which they are.
        """
        name = job_name(job)
        try:
            grant = self._decode(token)
        except DecodeError as error:
            return Refusal("token_invalid", error.reason)
        fits = size <= grant.size if name.is_shrunk else size == grant.size
        if grant.job != name.job or not fits:
            return Refusal("token_job", f"it is for another job than {job!r} of {size} ranks")
        if not name.is_shrunk and not grant.first <= rank < grant.until_rank:
            return Refusal(
                "token_rank", f"it is for ranks {grant.first} to {grant.until_rank - 1}, not {rank}"
            )
        if grant.host not in ("", host):
            return Refusal("token_host", f"it is for another host than {host!r}")
        if now_s >= grant.expires_s:
            return Refusal("token_expired", f"it ran out {now_s - grant.expires_s:.0f} s ago")
        return grant

    def _decode(self, token: str) -> Grant:
        if not token.startswith(PREFIX):
            raise DecodeError("token", "there is none: this deployment wants a job's token as its key")
        data = _bytes(token.removeprefix(PREFIX))
        body, mac = data[:-_MAC_BYTES], data[-_MAC_BYTES:]
        matches = [hmac.compare_digest(mac, _mac(secret, body)) for secret in self.secrets]
        if not any(matches):
            raise DecodeError("token", "nobody of this deployment has made it, or it was changed")
        expires_s, nonce, size, first, until_rank, job_bytes = _FIXED.unpack_from(body)
        names = body[_FIXED.size :]
        return Grant(
            names[:job_bytes].decode(), size, first, until_rank, expires_s, nonce, names[job_bytes:].decode()
        )


def hash_of(token: str) -> str:
    """SHA-256 in hex. What is long and cannot be guessed needs neither salt nor a slow hash."""
    return hashlib.sha256(token.encode()).hexdigest()


def _body(grant: Grant) -> bytes:
    job = grant.job.encode()
    fixed = _FIXED.pack(grant.expires_s, grant.nonce, grant.size, grant.first, grant.until_rank, len(job))
    return fixed + job + grant.host.encode()


def _mac(secret: bytes, body: bytes) -> bytes:
    return hmac.digest(secret, b"inaproto job token 1\0" + body, "sha256")


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    """The bytes of the one text that ``_text`` makes of them. Raises ``DecodeError``."""
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise DecodeError("token", "it is no token, or it was cut") from None
    if len(data) < _FIXED.size + _MAC_BYTES or _text(data) != text:
        raise DecodeError("token", "it is no token, or it was cut")
    return data
