"""TLS between machines: credentials from a directory, contexts, and who the other side is.

TLS 1.3 and nothing older, both sides show a certificate of the deployment's own authority, no session is
resumed (each connection is verified anew, and there is no early data to be replayed). Files are looked
at whenever a connection is made, and every few seconds by who listens, so renewed certificates and longer
revocation lists need no restart; files that do not fit together are reported, and what was good before stays
in use.

Departure from ``trio.SSLStream``: control messages are sent from synchronous code, see
:mod:`inaproto.daemon.net.tls_stream`.
"""

from __future__ import annotations

import logging
import ssl
import stat
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from inaproto.ca.identity import SERVERS, Identity, Role, holder_of
from inaproto.errors import ConfigError, DecodeError

ALPN: Final = "inaproto-control/1"
CA_FILE: Final = "ca.pem"
CRL_FILE: Final = "crl.pem"
CERTIFICATE_FILE: Final = "cert.pem"
KEY_FILE: Final = "key.pem"

log = logging.getLogger("inaproto.tls")


class TlsRefused(Exception):
    """The other side is not who may speak here. ``code`` is stable, for counters."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


_Stamp = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class _Contexts:
    stamp: _Stamp
    server: ssl.SSLContext
    client: ssl.SSLContext
    named: ssl.SSLContext
    """As ``client``, for a far side that is known by its address rather than its name."""
    revoked: frozenset[str]
    """Serials of certificates."""


class Credentials:
    """Credentials of one daemon, from its directory; raises ``ConfigError`` when they are not usable at its
    start."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.reloads = 0
        self.error = ""
        """Why newer files are not used; empty: they are."""
        try:
            self._contexts = self._load()
        except (OSError, ValueError) as error:
            raise ConfigError(f"tls: {self._explain(error)}") from None
        self._tried = self._contexts.stamp

    def server(self) -> ssl.SSLContext:
        return self._fresh().server

    def client(self, *, by_address: bool = False) -> ssl.SSLContext:
        contexts = self._fresh()
        return contexts.named if by_address else contexts.client

    def revoked(self) -> frozenset[str]:
        """Serials of certificates, as far as they are known by now."""
        return self._fresh().revoked

    def status(self) -> dict[str, Any]:
        """For ``inaproto status`` and the doctor."""
        record: dict[str, Any] = {"dir": str(self.directory), "reloads": self.reloads, "error": self.error}
        try:
            record |= certificate_status(self.directory / CERTIFICATE_FILE)
        except ConfigError as error:
            record["error"] = record["error"] or str(error)
        return record

    def _fresh(self) -> _Contexts:
        try:
            stamp = self._stamp()
            if stamp == self._tried:
                return self._contexts
            self._tried = stamp
            self._contexts = self._load()
            self.reloads += 1
            self.error = ""
            log.info("new certificates from %s", self.directory)
        except (OSError, ValueError) as error:
            told = self._explain(error)
            if told != self.error:
                log.warning("certificates are not renewed: %s", told)
            self.error = told
        return self._contexts

    def _explain(self, error: Exception) -> str:
        remedy = "inaproto ca issue makes them"
        if isinstance(error, OSError) and not isinstance(error, ssl.SSLError):
            return f"{error.filename or self.directory}: {error.strerror}; {remedy}"
        return f"{self.directory}: {error}; {remedy}"

    def _stamp(self) -> _Stamp:
        found = []
        for name in (CA_FILE, CERTIFICATE_FILE, KEY_FILE, CRL_FILE):
            path = self.directory / name
            if name != CRL_FILE or path.exists():
                what = path.stat()
                found.append((what.st_ino, what.st_mtime_ns, what.st_size))
        return tuple(found)

    def _load(self) -> _Contexts:
        from inaproto.ca.authority import revoked_serials  # cryptography: only where TLS is used

        stamp = self._stamp()
        require_private(self.directory / KEY_FILE)
        return _Contexts(
            stamp,
            self._context(ssl.PROTOCOL_TLS_SERVER),
            self._context(ssl.PROTOCOL_TLS_CLIENT),
            self._context(ssl.PROTOCOL_TLS_CLIENT, by_address=True),
            revoked_serials(self.directory),
        )

    def _context(self, kind: int, *, by_address: bool = False) -> ssl.SSLContext:
        context = ssl.SSLContext(kind)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = by_address
        context.verify_mode = ssl.CERT_REQUIRED
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        context.load_verify_locations(self.directory / CA_FILE)
        if (self.directory / CRL_FILE).exists():
            context.load_verify_locations(self.directory / CRL_FILE)
            context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
        context.load_cert_chain(self.directory / CERTIFICATE_FILE, self.directory / KEY_FILE)
        context.set_alpn_protocols([ALPN])
        context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
        if kind == ssl.PROTOCOL_TLS_SERVER:
            context.num_tickets = 0
        return context


def require_private(key: Path) -> None:
    """Raises ``ValueError`` for a key that others than its user and group may read, or others write."""
    mode = key.stat().st_mode
    if mode & (stat.S_IRWXO | stat.S_IWGRP):
        raise ValueError(f"{key} has mode {stat.S_IMODE(mode):04o}; chmod 0600 {key}")


def certificate_status(path: Path) -> dict[str, Any]:
    """Who it names and when it runs out, for people. Raises ``ConfigError``."""
    from inaproto.ca.authority import read_certificate  # cryptography: only where TLS is used

    shown = read_certificate(path)
    return {
        "role": "authority" if shown.role is None else shown.role.value,
        "name": shown.name,
        "serial": shown.serial,
        "expires": shown.expires.isoformat(),
        "days_left": round(shown.days_left(datetime.now(UTC)), 2),
    }


def identity_of(session: ssl.SSLObject, address: str) -> Identity:
    """Identity of a peer whose handshake is over. Raises ``TlsRefused``."""
    if session.selected_alpn_protocol() != ALPN:
        raise TlsRefused("wrong_protocol", f"it does not speak {ALPN}")
    certificate = session.getpeercert() or {}
    names = [(str(kind), str(value)) for kind, value in _pairs(certificate.get("subjectAltName"))]
    try:
        role, name = holder_of([value for kind, value in names if kind == "URI"])
    except DecodeError as error:
        raise TlsRefused("bad_identity", f"its certificate has {error.reason}") from None
    return Identity(
        role,
        name,
        address,
        tuple(value for kind, value in names if kind == "IP Address"),
        float(ssl.cert_time_to_seconds(str(certificate["notAfter"]))),
        str(certificate.get("serialNumber", "")).lower().lstrip("0"),
    )


def require_server(identity: Identity, name: str, role: Role | None = None) -> None:
    """Who answers must be a switch or controller, of ``role`` and called ``name`` if those are given.

    Raises ``TlsRefused``.
    """
    if identity.role not in SERVERS:
        raise TlsRefused("not_a_server", f"{identity} answers, not a switch or controller")
    if role is not None and identity.role is not role:
        raise TlsRefused("wrong_role", f"{identity} answers, not a {role.value}")
    if name and identity.name != name:
        raise TlsRefused("wrong_name", f"{identity} answers, not {name!r}")


def _pairs(value: Any) -> tuple[tuple[Any, Any], ...]:
    return tuple(value or ())


_BY_REASON: Final = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": ("no_certificate", "it shows no certificate"),
    "UNSUPPORTED_PROTOCOL": ("old_protocol", "it does not speak TLS 1.3"),
    "HTTP_REQUEST": ("not_tls", "it speaks HTTP, not TLS"),
    "WRONG_VERSION_NUMBER": ("not_tls", "it does not speak TLS"),
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": ("refused_by_peer", "it wants a certificate, and got none"),
    "TLSV1_ALERT_UNKNOWN_CA": ("refused_by_peer", "it does not know the authority of our certificate"),
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": ("refused_by_peer", "it says that our certificate has run out"),
    "SSLV3_ALERT_CERTIFICATE_REVOKED": ("refused_by_peer", "it says that our certificate was revoked"),
    "TLSV1_ALERT_PROTOCOL_VERSION": ("old_protocol", "it does not speak TLS 1.3"),
}
_BY_VERIFY_CODE: Final = {
    9: ("not_yet_valid", "its certificate is not valid yet; are the clocks right?"),
    10: (
        "expired",
        "its certificate has run out: inaproto ca issue renews it; or the clock of this machine is wrong",
    ),
    11: ("not_yet_valid", "its list of revoked certificates is not valid yet; are the clocks right?"),
    12: ("expired", "the authority of its certificate has run out; or the clock of this machine is wrong"),
    23: ("revoked", "its certificate was revoked"),
    26: ("wrong_purpose", "its certificate is not for this side of a connection"),
}
_AUTHORITY_CODES: Final = frozenset((2, 18, 19, 20, 21))


def explain(error: ssl.SSLError) -> TlsRefused:
    """In words, with a code."""
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in _AUTHORITY_CODES:
            return TlsRefused("unknown_authority", "another authority has signed its certificate")
        code, text = _BY_VERIFY_CODE.get(
            error.verify_code, ("bad_certificate", f"its certificate is not accepted: {error.verify_message}")
        )
        return TlsRefused(code, text)
    reason = str(getattr(error, "reason", "") or error)
    if reason in _BY_REASON:
        return TlsRefused(*_BY_REASON[reason])
    if "ALERT" in reason:
        return TlsRefused("refused_by_peer", f"it refused us: {reason}")
    return TlsRefused("bad_tls", f"TLS failed: {reason}")
