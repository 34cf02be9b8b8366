"""Parts of a daemon, by the names that its settings give: adapters, links, and the NIC of a host.

Invariant: what was opened for a part that then cannot be made is closed again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from ipaddress import ip_address
from typing import Any, Final

import trio

from inaproto.core.switch.events import AcceleratorConfig, MakeAccelerator, SwitchAccelerator
from inaproto.daemon.settings.config import HostSettings, OverlayNic, SwitchSettings
from inaproto.daemon.settings.cpus import AUTO
from inaproto.errors import ConfigError, LocalMisuse, Unsupported
from inaproto.ports import Adapter, Collective, FramePort, FramePorts, Link, Nic, Steering, load_adapter
from inaproto.wire.outer import IPV6_ADDRESS_BYTES, short_ip
from inaproto.wire.udp import shard_port

FRAME_PORT: Final = "frame port"
NIC: Final = "nic"
HARDWARE_NIC: Final = "hardware nic"
"""One of the machine's own, found by its address; it needs no frame port."""
LINK: Final = "link"
STEERED: Final = ("packet", "veth")
"""Adapters of links at which several processes may have a port."""
NIC_LINK: Final = "nic link"
"""On which there can be no switch."""

COLLECTIVE: Final = "collective"
ACCELERATOR: Final = "accelerator"
"""What sums in a switch in place of the software core."""
SOFTWARE: Final = "software"

OpenNic = Callable[[str], Awaitable[Nic]]
"""Given the path of the switch's socket for ports."""
Attach = Callable[[str], Awaitable[FramePort]]


def adapter_of(name: str, *kinds: str) -> Adapter:
    """One that is of any of ``kinds``, of which the first names it in messages. Raises ``Unsupported``."""
    adapter = load_adapter(name, *kinds)
    if not adapter.kinds.intersection(kinds):
        raise Unsupported(f"adapter {name!r} as {kinds[0]}", f"it is for {', '.join(sorted(adapter.kinds))}")
    return adapter


def frame_ports_of(name: str) -> FramePorts:
    """Where a switch and its hosts have their ports. Raises ``Unsupported``."""
    ports: FramePorts = adapter_of(name, FRAME_PORT).open()
    lacking = [end for end in ("listen", "connect") if not hasattr(ports, end)]
    if lacking:
        raise Unsupported(
            f"adapter {name!r} as {FRAME_PORT}",
            f"what it opens has no {' and no '.join(lacking)} (docs/writing-an-adapter.md, section 3)",
        )
    return ports


def link_of(spec: str, *more_kinds: str) -> Link:
    """``packet:eth1`` as the link of that adapter, which is a link or of ``more_kinds``."""
    adapter, _, interface = spec.partition(":")
    link: Link = adapter_of(adapter, LINK, *more_kinds).open(interface)
    return link


def links_of(settings: SwitchSettings, shard: int = 0) -> list[Link]:
    """Interfaces that are ports of a switch, as the process of ``shard`` has them; 0: that of its control
    plane. Raises ``ConfigError`` or ``Unsupported``."""
    if not settings.shards:
        return [link_of(spec) for spec in settings.port]
    first, last = (shard, shard) if shard else (1, settings.shards)
    steering = Steering(shard_port(first), shard_port(last), takes=shard > 0)
    found: list[Link] = []
    for spec in settings.port:
        adapter, _, interface = spec.partition(":")
        if adapter not in STEERED:
            raise ConfigError(f"shards: need ports of {' or '.join(STEERED)}; {spec} cannot tell rings apart")
        found.append(adapter_of(adapter, LINK).open(interface, steering=steering))
    return found


def accelerator_of(settings: SwitchSettings) -> MakeAccelerator:
    """What sums in a switch. Raises ``ConfigError`` or ``Unsupported``."""
    from inaproto.core.switch.accelerator import Accelerator

    name, _, text = settings.accelerator.partition(":")
    if name == SOFTWARE:
        if text:
            raise ConfigError(f"accelerator: the software core has no sizes, here {text!r}")
        return Accelerator
    if settings.shards:
        raise ConfigError("accelerator: shards are for the software core")
    adapter = adapter_of(name, ACCELERATOR)

    def make(config: AcceleratorConfig) -> SwitchAccelerator:
        try:
            made: SwitchAccelerator = adapter.open(text, config)
        except LocalMisuse as error:
            raise ConfigError(f"accelerator: {error}") from None
        return made

    return make


def collective_of(settings: HostSettings) -> Collective | None:
    """The library that sums in an order of its own, if one is named. Raises ``ConfigError`` or
    ``Unsupported``."""
    if not settings.collective:
        return None
    name, _, text = settings.collective.partition(":")
    try:
        library: Collective = adapter_of(name, COLLECTIVE).open(text)
    except LocalMisuse as error:
        raise ConfigError(f"collective: {error}") from None
    return library


async def nic_of(settings: HostSettings) -> tuple[HostSettings, OpenNic]:
    """How the host gets its NIC, and its settings with the address of that.

    Raises ``ConfigError`` or ``Unsupported`` if it can have none.
    """
    nics = adapter_of(settings.nic, NIC, HARDWARE_NIC)
    if HARDWARE_NIC not in nics.kinds:
        return settings, softnic_at(_attaching(settings), nics, settings)
    if settings.port:
        raise ConfigError(f"port: {settings.port} is for the softnic; nic {settings.nic} has its own port")
    if settings.vlan:
        raise ConfigError(
            f"vlan: {settings.vlan} is for the softnic; nic {settings.nic} is in the VLAN of the interface "
            "that has its address"
        )
    settings = await at_its_address(settings, nics)
    asked = {"relaxed_ordering": int(settings.relaxed_ordering == "on"), "busy_polls": settings.busy_polls}
    wishes = _device_of(settings) | {name: value for name, value in asked.items() if value}

    async def open_nic(port_path: str) -> Nic:
        nic: Nic = nics.open(**wishes)
        return nic

    return settings, open_nic


def softnic_at(attach: Attach, nics: Adapter, settings: HostSettings) -> OpenNic:
    """A NIC of ``nics`` on each port that ``attach`` gives."""

    async def open_nic(port_path: str) -> Nic:
        port = await attach(port_path)
        try:
            nic: Nic = nics.open(
                port,
                mac=settings.mac_bytes,
                ip=settings.ip_bytes,
                selective=settings.selective == "on",
                moderation=settings.moderation == "on",
                dcqcn_mbit=settings.dcqcn_mbit,
                vlan=settings.vlan,
                priority=settings.service_level,
            )
        except BaseException:
            with trio.CancelScope(shield=True):
                await port.aclose()
            raise
        return nic

    return open_nic


def _attaching(settings: HostSettings) -> Attach:
    """How the softnic gets its port: at the switch's socket, or on an interface."""
    if not settings.port:
        return frame_ports_of(settings.adapter).connect
    link = link_of(settings.port)
    link.require()
    link.require_stranger(settings.mac_bytes, settings.ip_bytes)

    async def attach(port_path: str) -> FramePort:
        return await link.attach()

    return attach


async def at_its_address(settings: HostSettings, nics: Adapter) -> HostSettings:
    """A device has the MAC address that it has. Raises ``Unsupported`` if it cannot be used."""
    nic: Nic = nics.open(**_device_of(settings))
    mac, near = nic.capabilities.mac, nic.capabilities.cpus
    await nic.aclose()
    if settings.mac != "auto" and settings.mac_bytes != mac:
        raise ConfigError(f"mac: the NIC with {settings.ip} has {mac.hex(':')}; leave mac at auto")
    place_near = {"cpus": f"{AUTO}:{near}"} if settings.cpus == AUTO and near else {}
    if settings.gid:
        return settings.model_copy(update=place_near)
    return settings.model_copy(update={"mac": mac.hex(":"), **place_near})


def _device_of(settings: HostSettings) -> dict[str, Any]:
    """By what an adapter finds the machine's own NIC."""
    if settings.gid_bytes is None:
        return {"ip": settings.ip_bytes}
    router = {"router_lid": settings.router_lid} if settings.router_lid else {}
    return {"gid": settings.gid_bytes, **router}


def overlay_nic_of(wish: OverlayNic) -> Callable[[], Awaitable[Nic]]:
    """How a process of the overlay opens its NIC, each time that it needs one.

    Raises ``ConfigError`` or ``Unsupported`` if it can have none; the one of a machine is looked for when it
    is opened.
    """
    nics = adapter_of(wish.nic, NIC, HARDWARE_NIC)
    field, ip = f"{wish.prefix}ip", wish.ip
    if HARDWARE_NIC in nics.kinds:
        if wish.port:
            raise ConfigError(
                f"{wish.prefix}port: {wish.port} is for the softnic; nic {wish.nic} has its own port"
            )
        if not ip:
            raise ConfigError(f"{field}: is missing; nic {wish.nic} is found by its address")
        return partial(_opened, nics, ip_address(ip).packed)
    if wish.port.startswith("udp:"):
        ip = ip or wish.port.removeprefix("udp:")
    link = link_of(wish.port, NIC_LINK) if wish.port else None
    if not ip:
        raise ConfigError(f"{field}: is missing; a softnic is a machine of its own, and needs an address")
    address = ip_address(ip).packed
    if wish.port.startswith("udp:") and len(address) == IPV6_ADDRESS_BYTES:
        raise ConfigError(f"{field}: {ip} does not go with {wish.prefix}port {wish.port}, which is of IPv4")
    mac = b"\x02\x00" + short_ip(address)
    if link is not None:
        link.require()
        link.require_stranger(mac, address)
        return partial(_softnic, nics, link.attach, mac, address)
    connect = partial(frame_ports_of("frames").connect, wish.ports_path, wait_ns=0)
    return partial(_softnic, nics, connect, mac, address)


async def _opened(nics: Adapter, ip: bytes) -> Nic:
    await trio.lowlevel.checkpoint()
    nic: Nic = nics.open(ip=ip)
    return nic


async def _softnic(nics: Adapter, attach: Callable[[], Awaitable[FramePort]], mac: bytes, ip: bytes) -> Nic:
    port = await attach()
    try:
        nic: Nic = nics.open(port, mac=mac, ip=ip)
    except BaseException:
        with trio.CancelScope(shield=True):
            await port.aclose()
        raise
    return nic
