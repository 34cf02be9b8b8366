"""``inaproto ca``: the certificates with which daemons on different machines know each other."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TypeVar

import click

from inaproto.ca import authority
from inaproto.ca.identity import CERTIFIED, Role
from inaproto.errors import InaprotoError
from inaproto.option_types import FiniteRange, WholeGroup

T = TypeVar("T")

WARN_DAYS: Final = 14
_EPILOG = """
Example: one authority, on a machine that is neither host nor switch; then a directory for each daemon.

\b
  inaproto ca init --dir /root/inaproto-ca
  inaproto ca issue --dir /root/inaproto-ca --role switch --name spine --address 10.0.0.100 --out spine
  inaproto ca issue --dir /root/inaproto-ca --role host --name h0 --address 10.0.0.1 --out h0
  scp -r h0 h0.example:/etc/inaproto/tls

\b
Then, on the two machines:
  inaproto switch --control-listen 10.0.0.100:7420 --tls /etc/inaproto/tls ...
  inaproto host --control tls://spine@10.0.0.100:7420 --tls /etc/inaproto/tls --name h0 ...

docs/security.md says what each role may do. Running daemons take up new files without a restart.
"""
_DIRECTORY = click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path),
    required=True,
    help="Of the authority; its key stays there.",
)
_ROLE = click.option("--role", type=click.Choice([role.value for role in CERTIFIED]), required=True)
_NAME = click.option("--name", required=True, help="Of the host, switch, controller, operator or job.")


@click.group(
    cls=WholeGroup, epilog=_EPILOG, short_help="Make certificates for hosts, switches and operators."
)
def ca() -> None:
    """Make an authority, and certificates that it signs."""


@ca.command(short_help="Make the authority of a deployment.")
@_DIRECTORY
def init(directory: Path) -> None:
    """Make the authority of a deployment: an EC P-256 key and its certificate. Nothing is overwritten."""
    _guard(lambda: authority.create(directory))
    click.echo(
        f"{directory / authority.CA_KEY_FILE} can make a certificate for anybody: keep it off the network"
    )


@ca.command(short_help="Make or renew a certificate.")
@_DIRECTORY
@_ROLE
@_NAME
@click.option(
    "--address",
    "addresses",
    multiple=True,
    help="Of a switch or controller: where it listens. Of a host: its NIC's IP, the only one it may have.",
)
@click.option(
    "--days",
    type=FiniteRange(0, authority.CA_DAYS, min_open=True),
    default=authority.DAYS,
    show_default=True,
)
@click.option(
    "--out", type=click.Path(path_type=Path), required=True, help="Directory for it, its key and ca.pem."
)
def issue(directory: Path, role: str, name: str, addresses: tuple[str, ...], days: float, out: Path) -> None:
    """Make a certificate with a new key; where there is one in --out, renew it."""

    def run() -> authority.Shown:
        signer = authority.load(directory)
        return signer.issue(Role(role), name, directory=out, days=days, addresses=addresses)

    shown = _guard(run)
    click.echo(f"{out}: {role} {name}, until {shown.expires:%Y-%m-%d %H:%M} UTC, serial {shown.serial}")


@ca.command(short_help="Show certificates, and when they run out.")
@click.argument("paths", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON list.")
def show(paths: tuple[Path, ...], *, as_json: bool) -> None:
    """Show certificates: PATHS are files, or directories with a cert.pem or ca.pem.

    Exit status 1 if one has run out, or does within 14 days.
    """
    now = datetime.now(UTC)
    found = _guard(lambda: [(path, authority.read_certificate(certificate_in(path))) for path in paths])
    if as_json:
        records = [
            {
                "path": str(path),
                "role": "authority" if one.role is None else one.role.value,
                "name": one.name,
                "addresses": list(one.addresses),
                "serial": one.serial,
                "expires": one.expires.isoformat(),
                "days_left": round(one.days_left(now), 2),
            }
            for path, one in found
        ]
        click.echo(json.dumps(records, indent=2))
    for path, one in () if as_json else found:
        what = "authority" if one.role is None else one.role.value
        where = f" ({', '.join(one.addresses)})" if one.addresses else ""
        click.echo(
            f"{path}: {what} {one.name}{where}, until {one.expires:%Y-%m-%d %H:%M} UTC, serial {one.serial}"
        )
    late = [(path, one.days_left(now)) for path, one in found if one.days_left(now) < WARN_DAYS]
    for path, left in late:
        when = f"runs out in {left:.1f} days" if left > 0 else f"ran out {-left:.1f} days ago"
        click.echo(f"inaproto: {path} {when}: renew it by inaproto ca issue", err=True)
    sys.exit(1 if late else 0)


@ca.command(short_help="Revoke the certificates of one holder.")
@_DIRECTORY
@_ROLE
@_NAME
def revoke(directory: Path, role: str, name: str) -> None:
    """Revoke all certificates of ROLE NAME that --dir has issued; then copy its crl.pem to all daemons."""
    serials = _guard(lambda: authority.load(directory).revoke(Role(role), name))
    click.echo(
        f"{len(serials)} revoked; copy {directory / authority.CRL_FILE} into every daemon's --tls directory"
    )


def certificate_in(path: Path) -> Path:
    """The file itself, or the certificate in a directory."""
    if not path.is_dir():
        return path
    own = path / authority.CERTIFICATE_FILE
    return own if own.exists() else path / authority.CA_FILE


def _guard(run: Callable[[], T]) -> T:
    try:
        return run()
    except InaprotoError as error:
        click.echo(f"inaproto: {error}", err=True)
        sys.exit(2)
