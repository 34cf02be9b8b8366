"""What UFM is asked: the two ways in which it takes reservations, by its REST interface.

By PKeys (``PkeyCalls``): in reservation mode, reservations follow the members of partitions
(``reservation_auto_by_pkeys``), so a job's hosts are made members of a PKey of its own, and an empty list
gives it back. By applications (``AppCalls``), the older way: a reservation is made, changed and deleted by a
name. Either is asked again as often as one likes: each call says all of what shall be.

None of this has ever met a real UFM: it is as the vendor's guides say (REST interface of 6.24).
"""

from __future__ import annotations

import base64
import ssl
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from inaproto.errors import ConfigError, InaprotoError
from inaproto_controller.cluster.desired import Grant
from inaproto_controller.cluster.reserved import pkey_of, written_guid, written_pkey
from inaproto_controller.service.sharp.comparison import Entry, Put, Take
from inaproto_controller.service.sharp.http_client import Answer, HttpClient, NoAnswer

CREDENTIALS_BYTES_MAX: Final = 4096
APP_PREFIX: Final = "inaproto-"
_ALLOCATIONS: Final = "/app/sharp/allocate_resources"
_NO_SHARP: Final = "set enable_sharp_allocation = true in UFM's gv.cfg and start it anew"
_OK: Final = frozenset((200, 201, 202, 204))


class UfmRefused(InaprotoError):
    """UFM says no to one change; others may go on. The message says what to do."""


class UfmCalls(Protocol):
    """Each raises ``NoAnswer``, and ``UfmRefused`` for a change that UFM does not make."""

    def key(self, grant: Grant) -> str:
        """Key under which UFM has a reservation."""
        ...

    async def read(self, pkeys: Collection[str]) -> dict[str, Entry]:
        """What UFM has under all keys that matter to these PKeys."""
        ...

    async def put(self, change: Put) -> None:
        """Make it so."""
        ...

    async def take(self, change: Take) -> None:
        """Give back what is ours."""
        ...

    async def reserved(self) -> frozenset[str]:
        """PKeys for which UFM has SHARP reservations, as it says."""
        ...


@dataclass(frozen=True, slots=True)
class UfmAddress:
    """``credentials``: a file of one line, ``USER:PASSWORD`` or a token. ``ca``: the authority of its
    certificate, by default those that the machine trusts."""

    url: str
    credentials: Path | None
    ca: Path | None
    answer_s: float

    def client(self) -> HttpClient:
        """Raises ``ConfigError``."""
        headers, base = {}, "/ufmRest"
        if self.credentials is not None:
            secret = _secret(self.credentials)
            if ":" in secret:
                headers["authorization"] = f"Basic {base64.b64encode(secret.encode()).decode()}"
            else:
                headers["authorization"], base = f"Basic {secret}", "/ufmRestV3"
        return HttpClient(self.url + base, headers=headers, tls=self._tls(), answer_s=self.answer_s)

    def _tls(self) -> ssl.SSLContext:
        try:
            return ssl.create_default_context(cafile=self.ca)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"ufm_ca {self.ca}: no certificates in PEM there: {error}") from None


def _secret(path: Path) -> str:
    """Raises ``ConfigError``, which never has what is in the file."""
    try:
        mode = path.stat().st_mode
        data = path.read_bytes()[: CREDENTIALS_BYTES_MAX + 1]
    except OSError as error:
        raise ConfigError(f"ufm_credentials {path}: {error.strerror or error}") from None
    if mode & 0o077:
        raise ConfigError(f"ufm_credentials {path}: others may read it; chmod 600 {path}")
    try:
        text = data.decode("ascii").strip()
    except UnicodeDecodeError:
        text = ""
    if not text or len(data) > CREDENTIALS_BYTES_MAX or not text.isprintable() or " " in text:
        raise ConfigError(f"ufm_credentials {path}: one line of ASCII, USER:PASSWORD or a token")
    return text


class PkeyCalls:
    """Reservations by members of PKeys; the key is the PKey."""

    def __init__(self, client: HttpClient) -> None:
        self._client = client

    def key(self, grant: Grant) -> str:
        """Its PKey."""
        return pkey_of(grant)

    async def read(self, pkeys: Collection[str]) -> dict[str, Entry]:
        """Members of these PKeys; one that UFM has not is left out."""
        answer = await self._client.ask("GET", "/resources/pkeys?guids_data=true")
        found: dict[str, Entry] = {}
        for name, fields in _object(answer, "GET /resources/pkeys").items():
            pkey = _pkey(name)
            if pkey in pkeys:
                guids = fields.get("guids") if isinstance(fields, dict) else None
                found[pkey] = Entry(pkey, _guids(guids, f"PKey {pkey}"))
        return found

    async def put(self, change: Put) -> None:
        """Make exactly these GUIDs its members."""
        await self._set(change.key, change.entry.guids)

    async def take(self, change: Take) -> None:
        """Leave it to whoever else is in it: an empty list gives the reservation back."""
        await self._set(change.key, change.left)

    async def _set(self, pkey: str, guids: Collection[str]) -> None:
        body = {"pkey": pkey, "index0": False, "ip_over_ib": True, "guids": _bare(guids)}
        answer = await self._client.ask("POST", "/actions/set_guids_for_pkey", body)
        _check(
            answer, f"PKey {pkey}", not_found="UFM knows one of its GUIDs or this call not: compare ufm_guids"
        )

    async def reserved(self) -> frozenset[str]:
        """PKeys that reservations have followed."""
        return await _reserved(self._client)


class AppCalls:
    """Reservations by name, ``inaproto-NUMBER`` of the grant; ``reservation_auto_by_pkeys`` must be off."""

    def __init__(self, client: HttpClient) -> None:
        self._client = client

    def key(self, grant: Grant) -> str:
        """Name of the application in UFM."""
        return f"{APP_PREFIX}{grant.number}"

    async def read(self, pkeys: Collection[str]) -> dict[str, Entry]:
        """All of them: a GUID is to be in one only. Ours are those with our name and one of our PKeys."""
        found = {}
        for name, fields in (await _allocations(self._client)).items():
            pkey, guids = _allocation(name, fields)
            found[name] = Entry(pkey, guids, name.startswith(APP_PREFIX) and pkey in pkeys)
        return found

    async def put(self, change: Put) -> None:
        """Make it, or change what is there."""
        body = {"app_id": change.key, "pkey": change.entry.pkey, "guids": _bare(change.entry.guids)}
        answer = await self._client.ask("POST" if change.is_new else "PUT", _ALLOCATIONS, body)
        _check(answer, f"reservation {change.key}", not_found=_NO_SHARP)

    async def take(self, change: Take) -> None:
        """Delete it; that there is none is as good."""
        answer = await self._client.ask("DELETE", f"{_ALLOCATIONS}/{change.key}")
        if answer.status != 404:
            _check(answer, f"reservation {change.key}", not_found="")

    async def reserved(self) -> frozenset[str]:
        """PKeys of all reservations."""
        return await _reserved(self._client)


async def _allocations(client: HttpClient) -> Mapping[str, Any]:
    answer = await client.ask("GET", _ALLOCATIONS)
    if answer.status == 404:
        raise NoAnswer(f"UFM reserves nothing for SHARP (404): {_NO_SHARP}")
    return _object(answer, f"GET {_ALLOCATIONS}")


async def _reserved(client: HttpClient) -> frozenset[str]:
    found = (await _allocations(client)).items()
    return frozenset(pkey for pkey, guids in (_allocation(*item) for item in found) if guids)


def _allocation(name: str, fields: Any) -> tuple[str, frozenset[str]]:
    if not isinstance(fields, dict):
        raise NoAnswer(f"UFM: reservation {name[:64]}: not an object, but {type(fields).__name__}")
    return _pkey(fields.get("pkey")), _guids(fields.get("guids"), f"reservation {name[:64]}")


def _pkey(text: object) -> str:
    """As it is written here; the default partition's and what is no PKey of ours as UFM has it."""
    try:
        return written_pkey(text)
    except ConfigError:
        return str(text)[:64]


def _guids(found: object, where: str) -> frozenset[str]:
    """GUIDs, each alone or in an object. Raises ``NoAnswer``: who cannot be read is not judged."""
    if not isinstance(found, list):
        raise NoAnswer(f"UFM: {where}: no list of GUIDs in its answer")
    try:
        return frozenset(written_guid(one.get("guid") if isinstance(one, dict) else one) for one in found)
    except ConfigError as error:
        raise NoAnswer(f"UFM: {where}: {error}") from None


def _bare(guids: Collection[str]) -> list[str]:
    """GUIDs without ``0x``, as UFM writes them."""
    return [guid.removeprefix("0x") for guid in sorted(guids)]


def _object(answer: Answer, what: str) -> Mapping[str, Any]:
    """Raises ``NoAnswer``."""
    _check_access(answer, what)
    if answer.status not in _OK:
        raise NoAnswer(f"{what}: UFM answers {answer.status}: {answer.words()}")
    try:
        found = answer.json()
    except ValueError:
        raise NoAnswer(f"{what}: no JSON in UFM's answer: is that UFM's address?") from None
    if not isinstance(found, dict):
        raise NoAnswer(f"{what}: not an object in UFM's answer")
    return found


def _check(answer: Answer, what: str, *, not_found: str) -> None:
    """Raises ``UfmRefused`` for a no, and ``NoAnswer`` where UFM itself is in trouble."""
    _check_access(answer, what)
    if answer.status in _OK:
        return
    said = f"{what}: UFM answers {answer.status}: {answer.words()}"
    if answer.status == 404:
        raise UfmRefused(f"{said}; {not_found}" if not_found else said)
    if answer.status >= 500 or answer.status < 400:
        raise NoAnswer(said)
    raise UfmRefused(f"{said}; see its limits (app_resources_default_limit, reservation_max_jobs_per_hca)")


def _check_access(answer: Answer, what: str) -> None:
    if answer.status in (401, 403):
        raise NoAnswer(f"{what}: UFM refuses the credentials ({answer.status}): look at ufm_credentials")
