"""Certificates of a deployment: an authority with an EC P-256 key, and what it signs.

A directory of an authority holds ``ca.pem``, ``ca.key`` (0600), ``crl.pem`` and a copy of every certificate
in ``issued``. A directory of credentials, which a daemon is given (``--tls``), holds ``ca.pem``,
``crl.pem``, ``cert.pem`` and ``key.pem`` (0600).

Invariants: a key is never overwritten and never readable by others, not even for a moment; a certificate of a
role that only asks (host, operator, job) cannot be used by one that is asked; the authority signs no
authorities.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from inaproto.ca.identity import LISTENERS, Role, holder_of, uri_of
from inaproto.errors import ConfigError, DecodeError

CA_FILE: Final = "ca.pem"
CA_KEY_FILE: Final = "ca.key"
CRL_FILE: Final = "crl.pem"
CERTIFICATE_FILE: Final = "cert.pem"
KEY_FILE: Final = "key.pem"
ISSUED: Final = "issued"
CA_DAYS: Final = 3650
DAYS: Final = 90
SKEW: Final = timedelta(minutes=5)
"""Certificates are valid from so long before they were made: clocks of machines differ."""
PEM_BYTES_MAX: Final = 1 << 20
_CURVE: Final = ec.SECP256R1()


@dataclass(frozen=True, slots=True)
class Shown:
    """What a certificate says; the instants are in UTC."""

    role: Role | None
    """None: it is an authority's."""
    name: str
    addresses: tuple[str, ...]
    serial: str
    begins: datetime
    expires: datetime

    def days_left(self, now: datetime) -> float:
        return (self.expires - now) / timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Authority:
    """Its directory, certificate and key; :func:`create` and :func:`load` make it."""

    directory: Path
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    def issue(
        self,
        role: Role,
        name: str,
        *,
        directory: Path,
        days: float = DAYS,
        addresses: Sequence[str] = (),
        now: datetime | None = None,
    ) -> Shown:
        """New credentials for ``role`` ``name`` in ``directory``, with a new key.

        ``addresses`` are IP addresses or DNS names. Raises ``ConfigError``; what is in ``directory`` is
        replaced as a whole (renewal), by files that are renamed into place.
        """
        now = now or datetime.now(UTC)
        key = ec.generate_private_key(_CURVE)
        certificate = self._sign(role, name, key, now, days, addresses)
        make_directory(directory, "out")
        authority = self.certificate.public_bytes(serialization.Encoding.PEM)
        replace_file(directory / CA_FILE, authority)
        replace_file(directory / CRL_FILE, (self.directory / CRL_FILE).read_bytes())
        # A reader between the two finds a pair that does not fit, keeps what it has, and looks again.
        replace_file(directory / KEY_FILE, _key_bytes(key), mode=0o600)
        pem = certificate.public_bytes(serialization.Encoding.PEM)
        replace_file(directory / CERTIFICATE_FILE, pem)
        shown = shown_of(certificate)
        replace_file(self.directory / ISSUED / f"{role.value}-{name}-{shown.serial}.pem", pem)
        return shown

    def _sign(
        self,
        role: Role,
        name: str,
        key: ec.EllipticCurvePrivateKey,
        now: datetime,
        days: float,
        addresses: Sequence[str],
    ) -> x509.Certificate:
        try:
            names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(uri_of(role, name))]
        except ValueError as error:
            raise ConfigError(f"name: {error}; letters, digits, '.', '_' and '-'") from None
        names += [_address(one) for one in addresses]
        expires = min(now + timedelta(days=days), self.certificate.not_valid_after_utc)
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if role in LISTENERS:
            usages.append(ExtendedKeyUsageOID.SERVER_AUTH)
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{role.value} {name}"[:64])])
        return (
            _builder(subject, self.certificate.subject, key, min(now, expires) - SKEW, expires)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False
            )
            .sign(self.key, hashes.SHA256())
        )

    def revoke(self, role: Role, name: str, *, now: datetime | None = None) -> list[str]:
        """Serials of the certificates of ``role`` ``name`` that come into ``crl.pem`` by this; none: they are
        there already.

        Raises ``ConfigError`` for one who has no certificate: a mistyped name would stay admitted.
        """
        now = now or datetime.now(UTC)
        old = x509.load_pem_x509_crl((self.directory / CRL_FILE).read_bytes())
        revoked = {one.serial_number: one for one in old}
        fresh = []
        issued = [read_certificate(path) for path in sorted((self.directory / ISSUED).glob("*.pem"))]
        own = [shown for shown in issued if (shown.role, shown.name) == (role, name)]
        if not own:
            names = sorted({shown.name for shown in issued if shown.role is role})
            there = f"there are {', '.join(names)}" if names else "there is none"
            who = f"{role.value} {name!r}: {self.directory} has issued it no certificate"
            raise ConfigError(f"{who}; of a {role.value} {there}")
        for shown in own:
            number = int(shown.serial, 16)
            if number not in revoked:
                entry = x509.RevokedCertificateBuilder().serial_number(number).revocation_date(now)
                revoked[number] = entry.build()
                fresh.append(shown.serial)
        replace_file(self.directory / CRL_FILE, self._crl(list(revoked.values()), now))
        return fresh

    def _crl(self, revoked: Sequence[x509.RevokedCertificate], now: datetime) -> bytes:
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self.certificate.subject)
            .last_update(now - SKEW)
            # A list that ran out would end every session: it lasts as long as the authority.
            .next_update(self.certificate.not_valid_after_utc)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False
            )
            .add_extension(x509.CRLNumber(int(now.timestamp())), critical=False)
        )
        for one in revoked:
            builder = builder.add_revoked_certificate(one)
        return builder.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def create(directory: Path, *, name: str = "inaproto", now: datetime | None = None) -> Authority:
    """A new authority. Raises ``ConfigError`` where there is one."""
    now = now or datetime.now(UTC)
    make_directory(directory, "dir")
    (directory / ISSUED).mkdir(mode=0o700, exist_ok=True)
    key = ec.generate_private_key(_CURVE)
    write_new(directory / CA_KEY_FILE, _key_bytes(key))
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{name} authority"[:64])])
    certificate = (
        _builder(subject, subject, key, now - SKEW, now + timedelta(days=CA_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    authority = Authority(directory, certificate, key)
    replace_file(directory / CRL_FILE, authority._crl([], now))
    replace_file(directory / CA_FILE, certificate.public_bytes(serialization.Encoding.PEM))
    return authority


def load(directory: Path) -> Authority:
    """The authority in ``directory``. Raises ``ConfigError``."""
    try:
        certificate = x509.load_pem_x509_certificate(_read(directory / CA_FILE))
        key = serialization.load_pem_private_key(_read(directory / CA_KEY_FILE), None)
    except OSError as error:
        raise ConfigError(
            f"dir: no authority in {directory}: {error.strerror}; make one by inaproto ca init"
        ) from None
    except (ValueError, TypeError) as error:
        raise ConfigError(f"dir: {directory} holds no authority: {error}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise ConfigError(f"dir: {directory / CA_KEY_FILE} is not the key of {CA_FILE}")
    return Authority(directory, certificate, key)


def read_certificate(path: Path) -> Shown:
    """Raises ``ConfigError``."""
    try:
        return shown_of(x509.load_pem_x509_certificate(_read(path)))
    except OSError as error:
        raise ConfigError(f"certificate {path}: cannot be read: {error.strerror}") from None
    except (ValueError, DecodeError) as error:
        raise ConfigError(f"certificate {path}: {error}") from None


def revoked_serials(directory: Path) -> frozenset[str]:
    """Serials on the list in a directory of credentials, as ``inaproto ca show`` prints them; none without a
    list.

    Raises ``OSError``, and ``ValueError`` for a list that the authority there has not signed.
    """
    if not (directory / CRL_FILE).exists():
        return frozenset()
    revoked = x509.load_pem_x509_crl(_read(directory / CRL_FILE))
    signer = x509.load_pem_x509_certificate(_read(directory / CA_FILE)).public_key()
    if not isinstance(signer, ec.EllipticCurvePublicKey) or not revoked.is_signature_valid(signer):
        raise ValueError(f"{directory / CRL_FILE} is not signed by {CA_FILE}")
    return frozenset(f"{one.serial_number:x}" for one in revoked)


def shown_of(certificate: x509.Certificate) -> Shown:
    """Raises ``DecodeError`` for one that names no role."""
    role: Role | None = None
    name = certificate.subject.rfc4514_string()
    addresses: tuple[str, ...] = ()
    constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
    if not constraints.ca:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        role, name = holder_of(names.get_values_for_type(x509.UniformResourceIdentifier))
        addresses = (
            *map(str, names.get_values_for_type(x509.IPAddress)),
            *names.get_values_for_type(x509.DNSName),
        )
    return Shown(
        role,
        name,
        addresses,
        f"{certificate.serial_number:x}",
        certificate.not_valid_before_utc,
        certificate.not_valid_after_utc,
    )


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    begins: datetime,
    expires: datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(expires)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _address(value: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(value))
    except ValueError:
        pass
    try:
        return x509.DNSName(value)
    except ValueError as error:
        raise ConfigError(f"address: {value!r} is no IP address and no DNS name: {error}") from None


def _key_bytes(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


# --- files


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(PEM_BYTES_MAX)


def make_directory(directory: Path, what: str) -> None:
    """Private. Raises ``ConfigError``; its parent must exist."""
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{what}: cannot make {directory}: {error.strerror}") from None


def write_new(path: Path, data: bytes) -> None:
    """A secret, mode 0600. Raises ``ConfigError`` where the file exists."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise ConfigError(
            f"{path} exists and is not overwritten: what it has signed would be worth nothing; choose "
            "another directory, or move it away"
        ) from None
    except OSError as error:
        raise ConfigError(f"cannot make {path}: {error.strerror}") from None
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)


def replace_file(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """As a whole or not at all. Raises ``ConfigError``."""
    half = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(half, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            os.fchmod(descriptor, mode)
        half.replace(path)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from None
