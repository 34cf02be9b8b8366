"""Certificates of the daemons here: do they run out, are newer ones in use, can others read the keys."""

from __future__ import annotations

import stat
from collections.abc import Iterator, Mapping
from typing import Any, Final

from inaproto.daemon.net.tls import KEY_FILE
from inaproto.doctor.findings import Check, Finding, failed, ok, untestable, warning
from inaproto.doctor.site import Site

WARN_DAYS: Final = 14.0


def _look(site: Site) -> Iterator[Finding]:
    found = [one for one in map(credentials_in, (*site.switches, *site.hosts)) if one]
    if not found:
        yield untestable("no daemon that was asked speaks by TLS")
    for credentials in found:
        yield look_at_credentials(credentials)
        yield from _look_at_key(site, str(credentials.get("dir", "")))


def credentials_in(status: Mapping[str, Any]) -> Mapping[str, Any]:
    """Credentials in a daemon's status; empty if it has none."""
    for place in (status, *(status.get(name, {}) for name in ("control_listen", "control", "controller"))):
        if isinstance(place, Mapping) and isinstance(place.get("credentials"), Mapping):
            found: Mapping[str, Any] = place["credentials"]
            return found
    return {}


def look_at_credentials(credentials: Mapping[str, Any]) -> Finding:
    """``credentials``: as ``Credentials.status`` tells them."""
    who = f"{credentials.get('role', '?')} {credentials.get('name', '?')} ({credentials.get('dir', '?')})"
    asked = f"--role {credentials.get('role')} --name {credentials.get('name')}"
    mend = f"inaproto ca issue {asked} ..., and copy it there"
    left = credentials.get("days_left")
    if credentials.get("error"):
        return failed(f"{who}: {credentials['error']}", mend)
    if not isinstance(left, int | float):
        return failed(f"{who}: its certificate cannot be read", mend)
    if left <= 0:
        return failed(f"{who}: its certificate ran out {-left:.1f} days ago", mend)
    if left < WARN_DAYS:
        return warning(f"{who}: its certificate runs out in {left:.1f} days", mend)
    return ok(f"{who}: its certificate is good for {left:.0f} days")


def _look_at_key(site: Site, directory: str) -> Iterator[Finding]:
    path = f"{directory}/{KEY_FILE}"
    try:
        mode = (site.root / path.lstrip("/")).stat().st_mode
    except OSError:
        return  # of another machine, or not for this user to see
    if mode & (stat.S_IRWXO | stat.S_IWGRP):
        yield failed(
            f"{path} has mode {stat.S_IMODE(mode):04o}", f"chmod 0600 {path}; renew it: others may have it"
        )


CERTIFICATES: Final = Check(
    "certificates", "a daemon whose certificate has run out is turned away, and its ranks with it", _look
)
