"""The fabric file: all switches of a fabric, which is above which, and where their sockets are.

One TOML file for all of them; each switch daemon is told its own name in it::

    [[switches]]             # the first is the root: the hosts' and switches' control sessions are with it
    name = "spine"
    dir = "/run/inaproto/spine"

    [[switches]]
    name = "leaf0"
    dir = "/run/inaproto/leaf0"
    above = "spine"
    # aggregates = false     # it sends what its hosts send to the switch above, which sums it
    # trunk = "/path"        # where it dials, if not trunk-leaf0.sock in the directory of the one above

A switch may have further links up: ``above = ["spine0", "spine1"]``. The first is that of the fabric's own
tree, which ordinary traffic goes along; the others are for rings alone, along trees that are assigned to
them. So spine1 may be a *further root*: a switch without ``above`` that is not the first. It sums, and no
host is at it. Where trunks are dialled otherwise, ``trunk`` is a list in the order of ``above``.

From the place of a switch in the file come the addresses of its virtual connections and the numbers of its
trunk ports, so all daemons must have the same file: they compare its digest.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from inaproto.core.plan.aggregation_tree import SwitchAddress
from inaproto.core.rendezvous.fabric.events import TreeControlConfig
from inaproto.core.rendezvous.fabric_tree import FabricSwitch, LinkUp
from inaproto.daemon.net.names import CONTROL_SOCKET, PORTS_SOCKET, require_name, trunk_socket
from inaproto.daemon.net.unix_sockets import require_path_fits
from inaproto.errors import ConfigError
from inaproto.units import PortId

FABRIC_BYTES_MAX: Final = 1 << 20
SWITCHES_MAX: Final = 250
_ADDRESS_NET: Final = bytes([169, 254, 1])
"""Link-local (RFC 3927): no host has such an address by configuration, and no router passes it on."""
_MAC_PREFIX: Final = b"\x02\x01"
"""Locally administered; host daemons make theirs from 02:00."""


def _as_list(value: object) -> object:
    """What stands alone is a list of one."""
    return (value,) if isinstance(value, str) else value


def _some(values: tuple[str, ...]) -> tuple[str, ...]:
    if not values:
        raise ValueError("leave it out, or name a switch")
    return values


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, AfterValidator(require_name)]
    dir: Annotated[Path, AfterValidator(Path.expanduser)]
    above: Annotated[tuple[str, ...], BeforeValidator(_as_list), AfterValidator(_some)] = ()
    aggregates: bool = Field(default=True, strict=True)
    trunk: Annotated[
        tuple[Path, ...],
        BeforeValidator(_as_list),
        AfterValidator(lambda paths: tuple(path.expanduser() for path in paths)),
    ] = ()


class Uplink(NamedTuple):
    above: str
    trunk: Path
    """Where it is dialled."""


@dataclass(frozen=True)
class FabricEntry:
    """One switch of the file; the paths are absolute."""

    name: str
    dir: Path
    uplinks: tuple[Uplink, ...] = ()
    """The first is that of the fabric's own tree; none at a root."""
    aggregates: bool = True

    @property
    def above(self) -> str | None:
        """The switch above in the fabric's own tree."""
        return self.uplinks[0].above if self.uplinks else None

    @property
    def trunk(self) -> Path | None:
        """Where it dials that one."""
        return self.uplinks[0].trunk if self.uplinks else None

    @property
    def further(self) -> tuple[str, ...]:
        """Other switches above, to which its trunks are for rings alone."""
        return tuple(link.above for link in self.uplinks[1:])

    @property
    def control_path(self) -> Path:
        return self.dir / CONTROL_SOCKET

    @property
    def ports_path(self) -> Path:
        return self.dir / PORTS_SOCKET


@dataclass(frozen=True)
class Fabric:
    """All switches, the root first, each after the one above it; made by :func:`load_fabric`."""

    entries: tuple[FabricEntry, ...]

    @property
    def root(self) -> FabricEntry:
        return self.entries[0]

    @cached_property
    def by_name(self) -> Mapping[str, FabricEntry]:
        return {entry.name: entry for entry in self.entries}

    @cached_property
    def digest(self) -> str:
        """Digest of what all switches must agree on: names, order, who is above whom, who aggregates."""
        what = [
            (entry.name, [entry.above, *entry.further] if entry.further else entry.above, entry.aggregates)
            for entry in self.entries
        ]
        return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:32]

    def below(self, name: str) -> list[FabricEntry]:
        """In the fabric's own tree."""
        return [entry for entry in self.entries if entry.above == name]

    def further_below(self, name: str) -> list[FabricEntry]:
        return [entry for entry in self.entries if name in entry.further]

    def address(self, name: str) -> SwitchAddress:
        """The address of its virtual connections."""
        ip = _ADDRESS_NET + bytes([1 + self.entries.index(self.by_name[name])])
        return SwitchAddress(_MAC_PREFIX + ip, ip)

    def trunk_ports(self, name: str) -> dict[str, PortId]:
        """Port of switch ``name`` to each switch next to it: above, then below in the order of the file.

        Those of further links come after, in the same order. They are 1, 2, ...; those of hosts come after
        them.
        """
        above = self.by_name[name].above
        next_to_it = [*([] if above is None else [above]), *(entry.name for entry in self.below(name))]
        next_to_it += self.by_name[name].further
        next_to_it += [entry.name for entry in self.further_below(name)]
        return {other: PortId(1 + index) for index, other in enumerate(next_to_it)}

    def ring_ports(self, name: str) -> frozenset[PortId]:
        """Ports of further links."""
        others = {*self.by_name[name].further, *(entry.name for entry in self.further_below(name))}
        return frozenset(port for other, port in self.trunk_ports(name).items() if other in others)

    def ports_up(self, name: str) -> frozenset[PortId]:
        """Ports to switches above."""
        ports = self.trunk_ports(name)
        return frozenset(ports[link.above] for link in self.by_name[name].uplinks)

    def tree_config(self) -> TreeControlConfig:
        """For the control of trees, with no host known yet."""
        switches = []
        for entry in self.entries:
            links = [
                LinkUp(above, self.trunk_ports(entry.name)[above], self.trunk_ports(above)[entry.name])
                for above, _ in entry.uplinks
            ]
            switch = FabricSwitch(entry.name, self.address(entry.name), aggregates=entry.aggregates)
            if links:
                own, *further = links
                switch = replace(
                    switch,
                    above=own.above,
                    port_up=own.port_up,
                    port_down=own.port_down,
                    further=tuple(further),
                )
            switches.append(switch)
        return TreeControlConfig(tuple(switches), {})


@dataclass(frozen=True)
class Place:
    """A fabric, and which of its switches a daemon is."""

    fabric: Fabric
    name: str

    @property
    def entry(self) -> FabricEntry:
        return self.fabric.by_name[self.name]

    @property
    def is_root(self) -> bool:
        """Whether it is the root of the fabric: the one with the control plane."""
        return self.entry is self.fabric.root

    @property
    def is_further_root(self) -> bool:
        return self.entry.above is None and not self.is_root

    @property
    def address(self) -> SwitchAddress:
        return self.fabric.address(self.name)

    def trunk_paths(self) -> dict[str, Path]:
        """Where it listens for each switch below it."""
        below = (*self.fabric.below(self.name), *self.fabric.further_below(self.name))
        return {entry.name: self.entry.dir / trunk_socket(entry.name) for entry in below}


def load_fabric(file: Path) -> Fabric:
    """Read and check. Raises ``ConfigError`` that names file, switch and field."""
    try:
        with file.open("rb") as stream:
            data = stream.read(FABRIC_BYTES_MAX + 1)
        if len(data) > FABRIC_BYTES_MAX:
            raise ConfigError(f"fabric file {file}: is longer than {FABRIC_BYTES_MAX} bytes")
        document = tomllib.loads(data.decode("utf-8"))
    except OSError as error:
        raise ConfigError(f"fabric file {file}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"fabric file {file}: is not UTF-8 text (byte {error.start})") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"fabric file {file}: is not TOML: {error}") from None
    try:
        return fabric_of(document, file.absolute().parent)
    except ConfigError as error:
        raise ConfigError(
            "\n".join(f"fabric file {file}: {line}" for line in str(error).split("\n"))
        ) from None


def place_in(file: Path, name: str) -> Place:
    """The switch ``name`` of a fabric file. Raises ``ConfigError``."""
    fabric = load_fabric(file)
    if name not in fabric.by_name:
        known = ", ".join(fabric.by_name)
        what = f"has no switch {name!r}" if name else "is given, but not which of its switches this one is"
        raise ConfigError(f"fabric file {file}: {what}; --name must be one of {known}")
    return Place(fabric, name)


def fabric_of(document: Mapping[str, Any], directory: Path) -> Fabric:
    """``document`` as TOML gives it; relative paths are those from ``directory``. Raises ``ConfigError``."""
    strange = [key for key in document if key != "switches"]
    tables = document.get("switches")
    if strange or not isinstance(tables, list) or not tables:
        found = f"unknown table or field {strange[0]!r}" if strange else "no switch in it"
        raise ConfigError(f"{found}; it has one table [[switches]] for each switch, and nothing else")
    if len(tables) > SWITCHES_MAX:
        raise ConfigError(f"has {len(tables)} switches, at most {SWITCHES_MAX}")
    entries = [_entry(number, table) for number, table in enumerate(tables)]
    dirs = {entry.name: directory / entry.dir for entry in entries}
    found_so_far: dict[str, FabricEntry] = {}
    for entry in entries:
        _check_place(entry, found_so_far, dirs)
        uplinks = []
        for number, above in enumerate(entry.above):
            listens = dirs[above] / trunk_socket(entry.name)
            trunk = directory / (entry.trunk[number] if number < len(entry.trunk) else listens)
            require_path_fits(listens, f"{entry.name}: trunk socket")
            require_path_fits(trunk, f"{entry.name}: trunk")
            uplinks.append(Uplink(above, trunk))
        require_path_fits(dirs[entry.name] / CONTROL_SOCKET, f"{entry.name}: dir")
        found_so_far[entry.name] = FabricEntry(entry.name, dirs[entry.name], tuple(uplinks), entry.aggregates)
    fabric = Fabric(tuple(found_so_far.values()))
    _check_roots(fabric)
    return fabric


def _entry(number: int, table: object) -> _Entry:
    try:
        return _Entry.model_validate(table)
    except ValidationError as error:
        lines = []
        for problem in error.errors(include_url=False, include_context=False):
            field = ".".join(str(part) for part in problem["loc"])
            reason = problem["msg"].removeprefix("Value error, ").replace("Input should", "it should")
            if problem["type"] == "extra_forbidden":
                reason = f"no such field; fields are {', '.join(_Entry.model_fields)}"
            elif problem["type"] == "missing":
                reason = "is missing"
            else:
                reason = f"{problem['input']!r} is not allowed: {reason}"
            lines.append(f"switches[{number}].{field}: {reason}")
        raise ConfigError("\n".join(lines)) from None


def _check_place(entry: _Entry, before: Mapping[str, FabricEntry], dirs: Mapping[str, Path]) -> None:
    name = entry.name
    if name in before:
        raise ConfigError(f"{name}: two switches have this name")
    same = [other for other in before if dirs[other] == dirs[name]]
    if same:
        raise ConfigError(f"{name}.dir: {dirs[name]} is that of {same[0]}, too; give each switch its own")
    if not before:
        if entry.above:
            raise ConfigError(f"{name}.above: the first switch is the root, which has none above it")
        if not entry.aggregates:
            raise ConfigError(f"{name}.aggregates: the root must aggregate")
    if entry.trunk and not entry.above:
        raise ConfigError(f"{name}.trunk: {'a further' if before else 'the'} root dials nobody")
    if len(entry.trunk) > max(1, len(entry.above)):
        raise ConfigError(f"{name}.trunk: {len(entry.trunk)} paths, for {len(entry.above)} switches above")
    for number, above in enumerate(entry.above):
        if above not in before:
            what = "stands after it; move it before" if above in dirs else "is no switch of this file"
            raise ConfigError(f"{name}.above: {above!r} {what}")
        if above in entry.above[:number]:
            raise ConfigError(f"{name}.above: {above!r} is in it twice")
    if entry.above and before[entry.above[0]].above is None and entry.above[0] != next(iter(before)):
        root, first = next(iter(before)), entry.above[0]
        raise ConfigError(
            f"{name}.above: {first} has none above it, so it is a further root, to which no ordinary traffic "
            f"goes; name a switch first that leads to {root}, the root"
        )


def _check_roots(fabric: Fabric) -> None:
    """A switch whose ``above`` was forgotten is no further root: nobody has a link to it."""
    for entry in fabric.entries[1:]:
        if entry.above is None and not fabric.further_below(entry.name):
            raise ConfigError(
                f"{entry.name}.above: is missing; only {fabric.root.name}, the first and so the root, has "
                "none, and further roots, which others have in their lists"
            )
        if entry.above is None and not entry.aggregates:
            raise ConfigError(
                f"{entry.name}.aggregates: a further root must aggregate, for it does nothing else"
            )
