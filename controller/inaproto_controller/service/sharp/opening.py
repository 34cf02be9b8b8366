"""Reservations as a controller's settings say, and what is wrong with these."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from inaproto.errors import ConfigError
from inaproto_controller.cluster.graph_topology import GraphTopology
from inaproto_controller.cluster.input_file import read_bounded
from inaproto_controller.cluster.reserved import UFM, Pool, parse_pkeys, written_guid
from inaproto_controller.service.settings import ControllerSettings
from inaproto_controller.service.sharp.service import Reservations
from inaproto_controller.service.sharp.ufm import AppCalls, PkeyCalls, UfmAddress

GUIDS_BYTES_MAX: Final = 1 << 24


def reservations_of(settings: ControllerSettings, topology: GraphTopology) -> Reservations | None:
    """None without a UFM. Raises ``ConfigError``, which names the setting."""
    if UFM in (*topology.host_names, *(switch.name for switch in topology.switches)):
        raise ConfigError(f"cluster: no host or switch may be called {UFM}")
    if not settings.ufm:
        return None
    if not settings.ufm_pkeys or settings.ufm_guids is None:
        raise ConfigError("ufm: needs ufm_pkeys, which PKeys are the controller's, and ufm_guids, a file")
    pool = Pool(parse_pkeys(settings.ufm_pkeys), read_guids(settings.ufm_guids, topology.host_names))
    where = UfmAddress(settings.ufm, settings.ufm_credentials, settings.ufm_ca, settings.ufm_answer_ms / 1000)
    client = where.client()
    calls = PkeyCalls(client) if settings.ufm_by == "pkeys" else AppCalls(client)
    return Reservations(calls, pool, where=f"{settings.ufm} by {settings.ufm_by}")


def read_guids(path: Path, hosts: tuple[str, ...]) -> Mapping[str, tuple[str, ...]]:
    """GUIDs of hosts, each of one host only. Raises ``ConfigError``, which names the host."""
    try:
        fields: Any = json.loads(read_bounded(path, GUIDS_BYTES_MAX))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"ufm_guids {path}: not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise ConfigError(f"ufm_guids {path}: an object of lists, by host")
    found, owner = {}, dict[str, str]()
    for host, guids in fields.items():
        where = f"ufm_guids {path}: {host}"
        if host not in hosts:
            raise ConfigError(f"{where}: the cluster file has no host of that name")
        if not isinstance(guids, list) or not guids:
            raise ConfigError(f"{where}: a list of GUIDs, at least one")
        try:
            found[host] = tuple(written_guid(guid) for guid in guids)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None
        for guid in found[host]:
            if owner.setdefault(guid, host) != host or found[host].count(guid) > 1:
                raise ConfigError(f"{where}: {guid} is named twice, here and at {owner[guid]}")
    return found
