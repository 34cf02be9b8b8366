"""How a host daemon gets a fabric: it says hello to its switch and attaches a NIC to the port it is told.

What keeps it from one is said in words: to be tried again (``NoFabric``), refused by the switch
(``HelloRefused``), or never to be (``ConfigError``).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import trio

from inaproto.daemon.host.attachment import Fabric
from inaproto.daemon.host.collective import CollectiveHost
from inaproto.daemon.host.link_memory import LinkMemory
from inaproto.daemon.host.placement import Placement
from inaproto.daemon.host.totals import HostTotals
from inaproto.daemon.host.turns import TurnsOf, no_turns
from inaproto.daemon.net.control_address import Door
from inaproto.daemon.net.control_stream import ControlStream, EndOfChannel
from inaproto.daemon.settings.config import HostSettings
from inaproto.errors import ConfigError, DecodeError, FabricError, Unsupported
from inaproto.ports import Nic, PortClosed, RandomBits
from inaproto.wire.control import why_not
from inaproto.wire.control_messages import SWITCH_AWAY, SWITCH_UNKNOWN, Error, Hello, Welcome
from inaproto.wire.messages.sharing import PeerMessage
from inaproto.wire.outer import IPV6_ADDRESS_BYTES

if TYPE_CHECKING:
    from inaproto.tracing.spans import Tracing

WELCOME_S = 5.0
NIC_OPEN_S = 5.0
"""Nothing answers the switch meanwhile, which gives a silent host 10 s."""

OpenNic = Callable[[str], Awaitable[Nic]]
"""Opens a NIC whose port is attached at the switch's ``port_path``."""


class NoFabric(Exception):
    """The switch cannot be reached now."""


class HelloRefused(NoFabric):
    """The switch is there and does not want this host."""


async def open_fabric(
    settings: HostSettings,
    open_nic: OpenNic,
    *,
    door: Door,
    random_bits: RandomBits,
    instance: str = "",
    turns_of: TurnsOf = no_turns,
    totals: HostTotals | None = None,
    memory: LinkMemory | None = None,
    heard_of_peer: Callable[[PeerMessage], None] = lambda word: None,
    add_in_threads: bool = True,
    placement: Placement | None = None,
    collective: CollectiveHost | None = None,
    tracing: Tracing | None = None,
) -> Fabric:
    """Connect to the switch through ``door``; ``instance`` names the daemon that does.

    Raises ``NoFabric``; ``ConfigError`` when they can never work together.
    """
    try:
        stream = ControlStream(await door.connect())
    except OSError as error:
        raise NoFabric(f"cannot connect to {door}: {error.strerror}") from None
    try:
        welcome = await _introduce(settings, stream, str(door), instance)
        nic = await _open_nic(settings, open_nic, welcome)
    except BaseException:
        stream.close()
        raise
    return Fabric(
        settings,
        stream,
        nic,
        welcome,
        random_bits=random_bits,
        turns_of=turns_of,
        totals=totals,
        memory=memory,
        heard_of_peer=heard_of_peer,
        add_in_threads=add_in_threads,
        placement=placement,
        collective=collective,
        tracing=tracing,
    )


async def _introduce(settings: HostSettings, stream: ControlStream, path: str, instance: str) -> Welcome:
    try:
        with trio.fail_after(WELCOME_S):
            mac, ip = settings.mac_bytes, settings.ip_bytes
            name, switch = settings.name, settings.switch
            hello = Hello(
                id=1,
                host=name,
                mac=mac,
                ip=ip,
                instance=instance,
                switch=switch,
                parks=True,
                overlays=True,
                probes=True,
                chooses_port=bool(settings.port),  # a softnic's; a device chooses by itself
                gid=settings.gid_bytes,
                succeeds=True,
            )
            await stream.send(hello)
            answer = await stream.receive()
    except trio.TooSlowError:
        raise NoFabric(f"{path} takes connections but does not answer within {WELCOME_S:g} s") from None
    except EndOfChannel as end:
        raise NoFabric(f"{path}: {end.reason}") from None
    except DecodeError as error:
        why = why_not(error, "whatever listens there is no inaproto switch")
        raise NoFabric(f"{path}: {why}") from None
    match answer:
        case Welcome(infiniband=False) if settings.gid:
            raise ConfigError(
                f"gid: the switch at {path} is of a release that knows no hosts on InfiniBand; start it "
                "from a newer one"
            )
        case Welcome():
            return answer
        case Error(code=code) if code == SWITCH_AWAY:
            raise NoFabric(answer.message)
        case Error(code=code) if code == SWITCH_UNKNOWN:
            raise ConfigError(f"dir, switch or ip: {answer.message}")
        case Error(code="bad_message") if len(ip) == IPV6_ADDRESS_BYTES:
            raise ConfigError(
                f"ip: the switch at {path} is of a release that knows no hosts with IPv6 addresses; start it "
                "from a newer one"
            )
        case Error():
            raise HelloRefused(answer.message)
        case _:
            raise NoFabric(f"{path}: answered hello by {answer.TYPE!r}; is it an inaproto switch?")


async def _open_nic(settings: HostSettings, open_nic: OpenNic, welcome: Welcome) -> Nic:
    where = settings.port or welcome.port_path
    try:
        with trio.fail_after(NIC_OPEN_S):
            nic = await open_nic(welcome.port_path)
    except trio.TooSlowError:
        raise NoFabric(f"cannot attach to {where}: no NIC within {NIC_OPEN_S:g} s") from None
    except PortClosed as closed:
        raise NoFabric(f"cannot attach to {where}: {closed.reason}") from None
    except (FabricError, Unsupported, OSError) as error:
        raise NoFabric(f"cannot attach to {where}: {error}") from None
    mtu_max = min(welcome.mtu_max, nic.capabilities.mtu_max)
    if settings.asked_mtu > mtu_max:
        await nic.aclose()
        raise ConfigError(f"mtu: {settings.mtu} is too large; the switch and the NIC take {mtu_max}")
    return nic
