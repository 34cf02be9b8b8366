"""Configuration of the daemons: TOML file, then environment, then flags, the later one wins.

A file has one table per daemon (``[switch]``, ``[host]``), the variables are ``INAPROTO_`` and the
field's name in capitals, the flags are the field's name with dashes. Every refusal names the field,
where its value came from, the value, and what is allowed.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Final, Generic, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
)

from inaproto.client.run_directory import default_run_directory
from inaproto.client.variables import PREFIX, slips
from inaproto.core.rendezvous.path_costs import LinkFigures
from inaproto.daemon.net.control_address import (
    Endpoint,
    parse_control,
    parse_controller,
    parse_listen,
    split_controllers,
)
from inaproto.daemon.net.metrics_address import MetricsAddress
from inaproto.daemon.net.names import (
    CONTROL_SOCKET,
    PORTS_SOCKET,
    gives_no_status,
    require_name,
    server_socket,
)
from inaproto.daemon.net.unix_sockets import require_path_fits
from inaproto.daemon.settings.addresses import (
    gid_or_none,
    unicast_ip_or_none,
    unicast_mac,
)
from inaproto.daemon.settings.config_file import did_you_mean, read_table
from inaproto.daemon.settings.cpus import ALL, AUTO, parse_cpus
from inaproto.daemon.settings.fabric_file import place_in
from inaproto.errors import ConfigError
from inaproto.faults.weather import Weather
from inaproto.units import US
from inaproto.wire.outer import short_ip
from inaproto.wire.udp import SHARDS_MAX

WEATHER_EXAMPLE: Final = "drop=0.01,duplicate=0.001,reorder=0.01"

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["text", "json"]


def _weather(value: object) -> object:
    """``"drop=0.01,duplicate=0.001"`` as :class:`Weather`; everything else as it is."""
    if not isinstance(value, str):
        raise ValueError(f"must be text such as {WEATHER_EXAMPLE!r}")
    try:
        return Weather.parse(value)
    except ConfigError as error:
        raise ValueError(str(error).removeprefix("weather: ")) from None


def _power_of_two(value: int) -> int:
    if value & (value - 1):
        raise ValueError("must be a power of two (1, 2, 4, ...), so that slots survive the wrap of msg_id")
    return value


def _name_or_none(value: str) -> str:
    return require_name(value) if value else value


def _link(value: str) -> str:
    if value and not re.fullmatch(r"[a-z0-9_-]+:[^\s/:+]{1,15}(\+[^\s/:+]{1,15}){0,7}", value):
        raise ValueError(
            "must be an adapter and an interface such as packet:eth1, xdp:eth1 or tap:tap0, or several links "
            "to one neighbour such as packet:eth1+eth2"
        )
    return value


def _cpus(value: str) -> str:
    if value not in (AUTO, ALL):
        parse_cpus(value)
    return value


def _control(value: str) -> str:
    if value:
        parse_control(value)
    return value


def _control_listen(value: str) -> str:
    if value:
        parse_listen(value)
    return value


def _links(value: object) -> object:
    """Environment variables are one text, with blanks or commas between the links."""
    return value.replace(",", " ").split() if isinstance(value, str) else value


def _all_different(value: tuple[str, ...]) -> tuple[str, ...]:
    interfaces = [name for link in value for name in link.partition(":")[2].split("+")]
    for interface in interfaces:
        if interfaces.count(interface) > 1:
            raise ValueError(f"must not name {interface} twice")
    return value


def _number_of_text(value: object) -> object:
    """Environment variables are text, which ``Literal`` does not convert."""
    return int(value) if isinstance(value, str) and re.fullmatch(r"[0-9]{1,9}", value) else value


Mtu = Annotated[Literal[256, 512, 1024, 2048, 4096], BeforeValidator(_number_of_text)]
AUTO_MTU: Final = "auto"
"""As large as the path carries."""
AUTO_PACKETS_MAX: Final = 65535 // 4
"""Packets of a message are counted at 1024 bytes, and a path may carry 256."""
MtuOrAuto = Annotated[Literal["auto", 256, 512, 1024, 2048, 4096], BeforeValidator(_number_of_text)]
Control = Annotated[str, AfterValidator(_control)]
OptionalPath = Annotated[Path | None, AfterValidator(lambda path: path and path.expanduser().absolute())]
LinkName = Annotated[str, AfterValidator(_link)]
Directory = Annotated[Path, AfterValidator(lambda path: path.expanduser().absolute())]
"""Absolute, because the switch tells hosts its socket's path."""
Controllers = Annotated[
    tuple[Annotated[Path | Endpoint, BeforeValidator(parse_controller)], ...],
    BeforeValidator(split_controllers),
]


@dataclass(frozen=True, slots=True)
class OverlayNic:
    """What the settings of a process say of the NIC for words and arrays of models."""

    nic: str
    """Adapter."""
    port: str
    """Link; empty: the switch's socket for ports."""
    ip: str
    """Empty: that of the port."""
    ports_path: Path
    traffic_class: int
    prefix: str = ""
    """What the fields' names begin with."""


class Settings(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, arbitrary_types_allowed=True, use_attribute_docstrings=True
    )

    table: ClassVar[str]
    """Table of the configuration file."""

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_values(cls, value: object) -> object:
        if isinstance(value, bool):  # else true would be the number 1
            raise ValueError("must not be true or false")
        return value


class SwitchSettings(Settings):
    """``inaproto switch``."""

    table: ClassVar[str] = "switch"

    dir: Directory = Path()
    """Directory of its sockets; by default $XDG_RUNTIME_DIR/inaproto or /tmp/inaproto-UID."""
    fabric: OptionalPath = None
    """TOML file of a fabric of several switches, which says where its directory is."""
    name: Annotated[str, AfterValidator(_name_or_none)] = ""
    """Which switch of the fabric this one is; for a controller, which one of its cluster file."""
    controller: Controllers = ()
    """Of a controller controller-agents.sock, or tls://NAME@ADDRESS:PORT; repeatable, for a pair."""
    adapter: str = "frames"
    """Adapter of the ports at its socket: frames, or shm, which shares memory with hosts that can."""
    port: Annotated[tuple[LinkName, ...], BeforeValidator(_links), AfterValidator(_all_different)] = ()
    """Network interface that is a port, too: packet:, veth:, xdp: or tap:INTERFACE; repeatable. Links to the
    same neighbour are one port: packet:eth1+eth2."""
    accelerator: str = "software"
    """What sums: software; rtl, the hardware design simulated here, with sizes: rtl:ports=4,slots=512; or
    fpga:BUS, a board with ports of its own: fpga:xdma:PATH, etherbone:HOST, uart:PATH or socket:PATH."""
    shards: int = Field(default=0, ge=0, le=SHARDS_MAX)
    """Processes beside this one that have the rings of hosts at packet: and veth: ports; 0: this one does."""
    moderation: Literal["on", "off"] = "on"
    """With port: take in what comes at them less often amid long operations (interrupt moderation)."""
    mtu_max: Mtu = 4096
    """Largest RoCE path MTU that rings may use."""
    rings_max: int = Field(default=64, ge=1, le=4096)
    """Rings, and so jobs, at once."""
    ranks_max: int = Field(default=64, ge=1, le=64)
    """Ranks per ring."""
    ports_max: int = Field(default=256, ge=1, le=4096)
    """Hosts at once."""
    control_listen: Annotated[str, AfterValidator(_control_listen)] = ""
    """ADDRESS:PORT for hosts, switches and operators of other machines, by TLS; needs tls but on loopback."""
    control: Control = ""
    """Of a switch of a fabric that is not on the root's machine: tls://ROOT@ADDRESS:PORT."""
    tls: OptionalPath = None
    """Directory of its certificate, key and ca.pem, as inaproto ca issue makes it."""
    job_secret: OptionalPath = None
    """File of 32 random bytes or more: ranks then join by a token that was made with it, as their key."""
    pool_rings: int = Field(default=1, ge=1, le=64)
    """Jobs on the path shared that have slots at once, by turns; a fabric does as its root says."""
    memory_kib: int = Field(default=1 << 20, ge=0, le=1 << 30)
    """Memory of the accelerator, KiB. The hosts of a ring for which it does not suffice sum themselves."""
    link_mbps: int = Field(default=0, ge=0, le=10_000_000)
    """Rate of the hosts' links, by which the hosts' paths are compared; 0: not known, a chain comes first."""
    link_latency_us: int = Field(default=10, ge=0, le=10_000_000)
    """With link_mbps: latency of a hop between hosts."""
    switch_mbps: int = Field(default=0, ge=0, le=10_000_000)
    """Rate at which switches add up what each host sends, for the comparison of paths; 0: that of links."""
    tensor_kib: int = Field(default=1024, ge=1, le=1 << 30)
    """With link_mbps or link_probe_kib: size of an all-reduce for which paths are compared."""
    link_probe_kib: int = Field(default=0, ge=0, le=1 << 13)
    """Without link_mbps: hosts that arrive measure a link by two writes of this size; 0: none does."""
    recover_ms: int = Field(default=5000, ge=0, le=3_600_000)
    """A job whose ring has ended waits this long for all its ranks, to go on; 0: it fails at once."""
    weather: Annotated[Weather, BeforeValidator(_weather)] = Weather()
    """Faults of every port, both ways: drop, duplicate, reorder, corrupt, truncate (per frame), delay."""
    seed: int = Field(default=0, ge=0, lt=1 << 63)
    """Seed of the weather."""
    capture: OptionalPath = None
    """File for all frames of all ports, as pcapng; it stops when full. For some time: inaproto capture."""
    capture_mb: int = Field(default=100, ge=1, le=1 << 20)
    """Largest size of the capture file, MiB."""
    metrics: MetricsAddress = ""
    """Tell Prometheus here: ADDRESS:PORT, or a socket's path. Whoever reaches it may read."""
    tracing: Literal["on", "off"] = "off"
    """on: send spans to an OpenTelemetry collector, which OTEL_EXPORTER_OTLP_ENDPOINT names."""
    log_level: LogLevel = "info"
    """debug, info, warning or error."""
    log_format: LogFormat = "text"
    """text, or json: one object a line, for programs."""

    @property
    def link_figures(self) -> LinkFigures | None:
        """As the cost model of paths has them; None: not known."""
        if not self.link_mbps:
            return None
        mbps = 1_000_000
        return LinkFigures(self.link_latency_us * US, self.link_mbps * mbps, self.switch_mbps * mbps)

    @property
    def ports_path(self) -> Path:
        return self.dir / PORTS_SOCKET

    @property
    def control_path(self) -> Path:
        return self.dir / CONTROL_SOCKET


class HostSettings(Settings):
    """``inaproto host``."""

    table: ClassVar[str] = "host"

    name: Annotated[str, AfterValidator(require_name)]
    """What messages call this host; another for each host of a switch."""
    ip: Annotated[str, AfterValidator(unicast_ip_or_none)] = ""
    """Address of its NIC, for example 10.0.0.1 or fd00::1; needed but for a NIC on InfiniBand."""
    gid: Annotated[str, AfterValidator(gid_or_none)] = ""
    """With nic verbs on InfiniBand, in place of ip: GID of its port, as inaproto nics shows it."""
    router_lid: int = Field(default=0, ge=0, lt=0xC000)
    """With gid: LID of the router to hosts of other InfiniBand subnets; 0: there are none."""
    mac: Annotated[str, AfterValidator(unicast_mac)] = "auto"
    """Address of its NIC; "auto" makes a locally administered one from the IP address."""
    dir: Directory = Path()
    """Directory of the switch's sockets; by default as the switch has it. In a fabric: of its root's."""
    switch: Annotated[str, AfterValidator(_name_or_none)] = ""
    """Switch of a fabric at which its NIC is; by default the root."""
    control: Control = ""
    """Where its switch's control plane is on another machine: tls://SWITCH@ADDRESS:PORT."""
    tls: OptionalPath = None
    """Directory of its certificate, key and ca.pem, as inaproto ca issue makes it."""
    listen: OptionalPath = None
    """Socket for training processes; by default DIR/NAME.sock."""
    controller: Controllers = ()
    """Of a controller controller-agents.sock, or tls://NAME@ADDRESS:PORT; repeatable, for a pair."""
    models: OptionalPath = None
    """Models file (TOML): what its workers train by push and pull, at which parameter servers."""
    models_tls: OptionalPath = None
    """With models: directory of its certificate of the role model, for other hosts and servers."""
    models_nic: str = ""
    """With models: adapter of the NIC by which its words and arrays go: softnic, or verbs; by default TCP."""
    models_ip: Annotated[str, AfterValidator(unicast_ip_or_none)] = ""
    """With models_nic: its address; by default ip for verbs, and that of the port for udp:ADDRESS."""
    models_port: LinkName = ""
    """With models_nic softnic: packet:, veth:, xdp:INTERFACE, udp:127.0.0.N; else the switch's socket."""
    adapter: str = "frames"
    """Adapter of the port at the switch's socket: frames, or shm for memory shared with it."""
    port: LinkName = ""
    """Network interface to the switch, for the softnic: packet:, veth: or xdp:INTERFACE; else its socket."""
    nic: str = "softnic"
    """Adapter of the NIC: softnic, or verbs for the machine's own RoCE device that has the address ip."""
    mtu: MtuOrAuto = 1024
    """RoCE path MTU, the same at all hosts of a job; auto: the largest that their paths carry."""
    window_messages: Annotated[int, Field(ge=1, le=1024), AfterValidator(_power_of_two)] = 8
    """Messages in flight; all hosts of a job need the same."""
    message_packets: int = Field(default=170, ge=1, le=65535)
    """Packets of a full message; all hosts of a job need the same."""
    transport_timeout: int = Field(default=14, ge=0, le=31)
    """Exponent of the retransmission timer: 4.096 us * 2**transport_timeout; 0 disables it."""
    retry_count: int = Field(default=7, ge=0, le=7)
    """Retries without progress before a queue pair fails; 7 never gives up."""
    selective: Literal["on", "off"] = "on"
    """With nic softnic: send again only what was lost, where both ends can; off: all that follows it, too."""
    moderation: Literal["on", "off"] = "on"
    """With nic softnic: take in what comes less often while messages queue (interrupt moderation)."""
    dcqcn_mbit: int = Field(default=0, ge=0, le=1_000_000)
    """With nic softnic: congestion control (DCQCN) for a link of so many Mbit/s; 0: none."""
    traffic_class: int = Field(default=0, ge=0, le=252, multiple_of=4)
    """TOS byte of RoCE packets, DSCP * 4: 104 (DSCP 26) for the lossless class of many networks."""
    service_level: int = Field(default=0, ge=0, le=7)
    """Priority (PCP) in the VLAN tag of RoCE packets; of a device the service level, which becomes that."""
    vlan: int = Field(default=0, ge=0, le=4094)
    """With nic softnic: the VLAN in which its frames are; 0: none. A device has that of its interface."""
    relaxed_ordering: Literal["on", "off"] = "off"
    """With nic verbs: let the device write what it receives in any order, where device and kernel can."""
    busy_polls: int = Field(default=0, ge=0, le=1 << 20)
    """With nic verbs: ask the device so often in a row before others have their turn; 0: wait for events."""
    cpus: Annotated[str, AfterValidator(_cpus)] = AUTO
    """CPUs of the thread that serves the NIC, as 0-3,8; all; or auto: those near a device, if known."""
    collective: str = ""
    """Library that sums for jobs with exact_plan=False: ADAPTER or ADAPTER:NAME, the same at all hosts."""
    collective_kib_min: int = Field(default=64, ge=0, le=1 << 20)
    """With collective: smaller all-reduces go without it; all hosts of a job need the same."""
    collective_timeout_ms: int = Field(default=10_000, ge=10, le=3_600_000)
    """With collective: it is given up for an all-reduce that has not ended so long after its start here."""
    stall_ms: int = Field(default=1000, ge=10, le=3_600_000)
    """An operation without progress for this long is reported to the switch."""
    operation_timeout_ms: int = Field(default=600_000, ge=0, le=1_000_000_000)
    """An all-reduce that has not ended this long after its start fails its job; 0 sets no limit."""
    recover_ms: int = Field(default=8000, ge=0, le=3_600_000)
    """Ranks that have lost the switch wait this long for it, to go on; 0: they fail at once."""
    metrics: MetricsAddress = ""
    """Tell Prometheus here: ADDRESS:PORT, or a socket's path. Whoever reaches it may read."""
    tracing: Literal["on", "off"] = "off"
    """on: send spans to an OpenTelemetry collector, which OTEL_EXPORTER_OTLP_ENDPOINT names."""
    log_level: LogLevel = "info"
    """debug, info, warning or error."""
    log_format: LogFormat = "text"
    """text, or json: one object a line, for programs."""

    @property
    def asked_mtu(self) -> int:
        """0: whatever the path carries."""
        return 0 if self.mtu == AUTO_MTU else self.mtu

    @property
    def mac_bytes(self) -> bytes:
        """Zeros on InfiniBand."""
        if self.gid:
            return bytes(6)
        if self.mac == "auto":
            return b"\x02\x00" + short_ip(self.ip_bytes)
        return bytes.fromhex(self.mac.replace(":", ""))

    @property
    def ip_bytes(self) -> bytes:
        """Zeros on InfiniBand."""
        return bytes(4) if self.gid else ipaddress.ip_address(self.ip).packed

    @property
    def gid_bytes(self) -> bytes | None:
        """None on Ethernet."""
        return ipaddress.IPv6Address(self.gid).packed if self.gid else None

    @property
    def control_path(self) -> Path:
        return self.dir / CONTROL_SOCKET

    @property
    def listen_path(self) -> Path:
        return self.listen if self.listen is not None else self.dir / f"{self.name}.sock"

    @property
    def overlay_nic(self) -> OverlayNic | None:
        """The NIC by which words and arrays of models go; None: by TCP."""
        if not self.models_nic:
            return None
        port, ip, path = self.models_port, self.models_ip, self.dir / PORTS_SOCKET
        default = "" if self.models_nic == "softnic" else self.ip
        return OverlayNic(self.models_nic, port, ip or default, path, self.traffic_class, "models_")


class ServerSettings(Settings):
    """``inaproto server``."""

    table: ClassVar[str] = "server"

    name: Annotated[str, AfterValidator(require_name)]
    """Which server of the models file this one is."""
    models: Annotated[Path, AfterValidator(lambda path: path.expanduser().absolute())]
    """Models file (TOML), the same as that of the hosts."""
    tls: OptionalPath = None
    """Directory of its certificate of the role model, as inaproto ca issue makes it."""
    store: OptionalPath = None
    """Directory for its shards, on a disk that survives the machine's end; by default DIR/NAME.store."""
    dir: Directory = Path()
    """Directory of its socket, for inaproto status; by default as the switch has it."""
    nic: str = ""
    """Adapter of the NIC by which words and arrays go: softnic, or verbs; by default they go by TCP."""
    ip: Annotated[str, AfterValidator(unicast_ip_or_none)] = ""
    """With nic: its address, of IPv4 or IPv6; by default that of the port for udp:ADDRESS."""
    port: LinkName = ""
    """With nic softnic: packet:, veth:, xdp:INTERFACE, udp:127.0.0.N; else a switch's socket in dir."""
    traffic_class: int = Field(default=0, ge=0, le=252, multiple_of=4)
    """With nic: TOS byte of RoCE packets, DSCP * 4: 104 (DSCP 26) for the lossless class of many networks."""
    metrics: MetricsAddress = ""
    """Tell Prometheus here: ADDRESS:PORT, or a socket's path. Whoever reaches it may read."""
    log_level: LogLevel = "info"
    """debug, info, warning or error."""
    log_format: LogFormat = "text"
    """text, or json: one object a line, for programs."""

    @property
    def store_path(self) -> Path:
        return self.store if self.store is not None else self.dir / f"{self.name}.store"

    @property
    def listen_path(self) -> Path:
        return self.dir / server_socket(self.name)

    @property
    def overlay_nic(self) -> OverlayNic | None:
        """The NIC by which words and arrays go; None: by TCP."""
        if not self.nic:
            return None
        return OverlayNic(self.nic, self.port, self.ip, self.dir / PORTS_SOCKET, self.traffic_class)


S = TypeVar("S", bound=Settings)


@dataclass(frozen=True, slots=True)
class Loaded(Generic[S]):
    """Settings, and where each field came from."""

    settings: S
    sources: Mapping[str, str]
    warnings: tuple[str, ...] = ()

    def show(self) -> str:
        """The configuration in force as TOML that can be read back, each field with its source."""
        rows: list[tuple[str, str]] = []
        for name in type(self.settings).model_fields:
            value = getattr(self.settings, name)
            if value is not None:
                rows.append((f"{name} = {_toml(value)}", self.sources[name]))
        width: int = max(len(text) for text, _ in rows)
        return "\n".join(
            [f"[{self.settings.table}]", *(f"{text:<{width}}  # {source}" for text, source in rows), ""]
        )


def load_switch_settings(
    flags: Mapping[str, object], file: Path | None, environment: Mapping[str, str]
) -> Loaded[SwitchSettings]:
    """Merge and check. ``flags`` holds the given ones only. Raises ``ConfigError``.

    The directory of a switch of a fabric is what the fabric file says.
    """
    loaded = _in_fabric(_load(SwitchSettings, flags, file, environment))
    require_path_fits(loaded.settings.control_path, f"dir ({loaded.sources['dir']}), control socket")
    require_path_fits(loaded.settings.ports_path, f"dir ({loaded.sources['dir']}), ports socket")
    _require_shards_fit(loaded.settings, loaded.sources["shards"])
    _require_tls_is_used(loaded.settings, loaded.sources["tls"])
    return loaded


def _require_tls_is_used(settings: SwitchSettings, source: str) -> None:
    """Who gives a certificate believes that others reach the switch by it."""
    speaks = settings.control_listen or settings.control
    is_used = bool(speaks) or any(isinstance(one, Endpoint) for one in settings.controller)
    if settings.tls is not None and not is_used and not source.startswith("environment"):
        raise ConfigError(
            f"tls ({source}): nobody speaks with it by TLS; give --control-listen, or --control or "
            "--controller of tls://, too"
        )


def _require_shards_fit(settings: SwitchSettings, source: str) -> None:
    if settings.shards and settings.fabric is not None:
        raise ConfigError(f"shards ({source}): a switch of a fabric cannot have any; leave it out")
    if settings.shards and not settings.port:
        raise ConfigError(
            f"shards ({source}): have rings of hosts at network interfaces; give them: --port packet:eth1"
        )


def load_host_settings(
    flags: Mapping[str, object], file: Path | None, environment: Mapping[str, str]
) -> Loaded[HostSettings]:
    """Merge and check. ``flags`` holds the given ones only. Raises ``ConfigError``."""
    loaded = _load(HostSettings, flags, file, environment)
    require_path_fits(loaded.settings.control_path, f"dir ({loaded.sources['dir']}), the switch's socket")
    settings = loaded.settings
    _require_address(settings, loaded.sources)
    if settings.mtu == AUTO_MTU and settings.message_packets > AUTO_PACKETS_MAX:
        raise ConfigError(
            f"message_packets ({loaded.sources['message_packets']}): at most {AUTO_PACKETS_MAX} with "
            "mtu = auto, as a message has four times as many where a path carries 256 bytes alone"
        )
    require_path_fits(settings.listen_path, f"listen ({loaded.sources['listen']})")
    for field in ("models_nic", "models_ip", "models_port"):
        needed = "models" if field == "models_nic" else "models_nic"
        if getattr(settings, field) and not getattr(settings, needed):
            option = needed.replace("_", "-")
            raise ConfigError(f"{field} ({loaded.sources[field]}): needs {needed}; give --{option}, too")
    is_in_dir = settings.listen_path.parent == settings.dir
    if settings.listen_path == settings.control_path or (
        is_in_dir and gives_no_status(settings.listen_path.name)
    ):
        field = "name" if settings.listen is None else "listen"
        owner = "controller" if settings.listen_path.name.startswith("controller") else "switch"
        raise ConfigError(
            f"{field} ({loaded.sources[field]}): {settings.listen_path} is the {owner}'s own socket; "
            f"give the host another {field}"
        )
    return loaded


def _require_address(settings: HostSettings, sources: Mapping[str, str]) -> None:
    """A host has an IP address, or on InfiniBand a GID."""
    if not settings.ip and not settings.gid:
        raise ConfigError(
            "ip: is missing; give --ip, INAPROTO_IP or the field ip in the configuration file (a NIC on "
            "InfiniBand has a gid instead)"
        )
    if settings.gid and settings.nic == "softnic":
        raise ConfigError(f"gid ({sources['gid']}): the softnic is on Ethernet; give --nic verbs, or --ip")
    if settings.gid and settings.ip:
        raise ConfigError(
            f"gid ({sources['gid']}): a NIC on InfiniBand has no ip ({sources['ip']}); leave one out"
        )
    if settings.gid and settings.mac != "auto":
        raise ConfigError(f"gid ({sources['gid']}): a NIC on InfiniBand has no mac ({sources['mac']})")
    if settings.router_lid and not settings.gid:
        raise ConfigError(f"router_lid ({sources['router_lid']}): needs gid; give --gid, too")


def load_server_settings(
    flags: Mapping[str, object], file: Path | None, environment: Mapping[str, str]
) -> Loaded[ServerSettings]:
    """Merge and check. ``flags`` holds the given ones only. Raises ``ConfigError``."""
    loaded = _load(ServerSettings, flags, file, environment)
    path = loaded.settings.listen_path
    require_path_fits(path, f"dir ({loaded.sources['dir']}), the server's socket")
    for field in ("ip", "port"):
        is_ours = not loaded.sources[field].startswith("environment")  # which hosts read, too
        if getattr(loaded.settings, field) and not loaded.settings.nic and is_ours:
            raise ConfigError(f"{field} ({loaded.sources[field]}): needs nic; give --nic, too")
    return loaded


def load_settings(
    model: type[S], flags: Mapping[str, object], file: Path | None, environment: Mapping[str, str]
) -> Loaded[S]:
    """Settings of any daemon that has a ``dir``. ``flags`` holds the given ones only. Raises
    ``ConfigError``."""
    return _load(model, flags, file, environment)


def _in_fabric(loaded: Loaded[SwitchSettings]) -> Loaded[SwitchSettings]:
    settings, sources = loaded.settings, dict(loaded.sources)
    if settings.fabric is None:
        from_flag = not sources["name"].startswith("environment")  # which hosts read, too
        if settings.name and from_flag and not (settings.controller or settings.control_listen):
            raise ConfigError(
                f"name ({sources['name']}): is for a switch of a fabric or one that others name; give "
                "--fabric, --controller or --control-listen, too"
            )
        if settings.controller and not settings.name:
            raise ConfigError(
                f"controller ({sources['controller']}): needs the switch's name in the cluster file; "
                "give --name, too"
            )
        return loaded
    directory = place_in(settings.fabric, settings.name).entry.dir
    if sources["dir"] != "default" and settings.dir != directory:
        raise ConfigError(
            f"dir ({sources['dir']}): is {settings.dir}, but {settings.fabric} says {directory} for "
            f"{settings.name}; leave it out"
        )
    sources["dir"] = f"{settings.fabric}: {settings.name}.dir"
    return Loaded(settings.model_copy(update={"dir": directory}), sources, loaded.warnings)


def _load(
    model: type[S], flags: Mapping[str, object], file: Path | None, environment: Mapping[str, str]
) -> Loaded[S]:
    values: dict[str, object] = {"dir": default_run_directory(environment)}
    sources = dict.fromkeys(model.model_fields, "default")
    for name, value in (read_table(file, model.table) if file else {}).items():
        values[name] = value
        sources[name] = f"{file}: {model.table}.{name}"
    for name in model.model_fields:
        variable = PREFIX + name.upper()
        if environment.get(variable):  # empty counts as not set
            values[name] = environment[variable]
            sources[name] = f"environment variable {variable}"
    for name, value in flags.items():
        values[name] = value
        sources[name] = f"flag --{name.replace('_', '-')}"
    try:
        settings = model.model_validate(values)
    except ValidationError as error:
        raise ConfigError(_describe(error, model, sources)) from None
    return Loaded(settings, sources, tuple(slips(environment)))


def _describe(error: ValidationError, model: type[Settings], sources: Mapping[str, str]) -> str:
    """One line per refused value: field, source, value, what is allowed."""
    lines = []
    for problem in error.errors(include_url=False, include_context=False):
        path = ".".join(str(part) for part in problem["loc"])
        field = str(problem["loc"][0])
        if problem["type"] == "extra_forbidden":
            known = list(model.model_fields)
            lines.append(
                f"{path} ({sources.get(field, '?')}): no such field{did_you_mean(field, known)}; "
                f"fields are {', '.join(known)}"
            )
        elif problem["type"] == "missing":
            lines.append(
                f"{path}: is missing; give --{field.replace('_', '-')}, {PREFIX}{field.upper()} "
                f"or the field {field} in the configuration file"
            )
        else:
            reason = problem["msg"].removeprefix("Value error, ").replace("Input should", "it should")
            lines.append(f"{path} ({sources.get(field, '?')}): {problem['input']!r} is not allowed: {reason}")
    return "\n".join(lines)


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    text = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return '"' + re.sub(r"[\x00-\x1f\x7f]", lambda found: f"\\u{ord(found.group()):04x}", text) + '"'
