"""Configuration of ``inaproto controller``."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated, ClassVar, Final, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from inaproto.daemon.net.control_address import parse_listen
from inaproto.daemon.net.metrics_address import MetricsAddress
from inaproto.daemon.net.names import AGENTS_SOCKET, JOBS_SOCKET, require_name
from inaproto.daemon.settings.config import Directory, LogFormat, LogLevel, OptionalPath, Settings
from inaproto.errors import ConfigError
from inaproto_controller.cluster.reserved import parse_pkeys

TreeRule = Literal["roots", "paring"]
PlacementRule = Literal["fragments", "paring"]
CapacityRule = Literal["file", "switch", "port"]
STORE_FILE: Final = "controller.db"
_LOOPBACK: Final = frozenset(("127.0.0.1", "::1", "localhost"))


def _loopback(value: str) -> str:
    if not value:
        return value
    address, colon, port = value.rpartition(":")
    try:
        is_loopback = ipaddress.ip_address(address.strip("[]")).is_loopback
    except ValueError:
        is_loopback = False
    if not colon or not port.isdecimal() or int(port) > 65535 or not is_loopback:
        raise ValueError("must be an address of this machine and a port, such as 127.0.0.1:7070")
    return value


def _name_or_none(value: str) -> str:
    return require_name(value) if value else value


def _rate(value: str) -> str:
    from inaproto_controller.planning.paring.exact_numbers import parse_exact

    found = parse_exact(value)
    if found is None or not found:
        raise ValueError("must be Gbit/s, more than 0, such as 100, 2.5 or 10/3")
    return value


def _ufm(value: str) -> str:
    parts = urlsplit(value)
    secure = parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK)
    if value and (not secure or not parts.hostname or parts.path not in ("", "/") or "@" in parts.netloc):
        raise ValueError("must be https://NAME or https://NAME:PORT; http only on this machine")
    return value.rstrip("/")


def _pkeys(value: str) -> str:
    try:
        return value and ",".join(parse_pkeys(value)) and value
    except ConfigError as error:
        raise ValueError(str(error)) from None


def _listen(value: str) -> str:
    if value:
        parse_listen(value)
    return value


def _absolute(value: str) -> str:
    return value if "://" in value or not value else str(Path(value).expanduser().absolute())


class ControllerSettings(Settings):
    """``inaproto controller``."""

    table: ClassVar[str] = "controller"

    dir: Directory = Path()
    """Directory of its sockets; by default $XDG_RUNTIME_DIR/inaproto or /tmp/inaproto-UID."""
    cluster: Annotated[Path, AfterValidator(lambda path: path.expanduser().absolute())]
    """Cluster file: hosts, switches and links (docs/cluster-files.md)."""
    capacity_model: CapacityRule = "file"
    """Trees that switches which sum take at a time: as the cluster file says, or, where all of them sum by
    SHARP and no switch daemon is asked, one for each switch (Quantum, and what is not known) or one for each
    port (Quantum-2)."""
    store: Annotated[str, AfterValidator(_absolute)] = ""
    """SQLite file, by default DIR/controller.db; or postgresql://..., which two controllers may share."""
    tcp: Annotated[str, AfterValidator(_loopback)] = ""
    """Also serve the job API here, without any check of who asks: 127.0.0.1:PORT."""
    agents_listen: Annotated[str, AfterValidator(_listen)] = ""
    """ADDRESS:PORT for hosts and switches of other machines, by TLS; needs tls but on loopback."""
    name: Annotated[str, AfterValidator(require_name)] = "controller"
    """That its certificate names."""
    tls: OptionalPath = None
    """Directory of its certificate, key and ca.pem, as inaproto ca issue makes it."""
    ufm: Annotated[str, AfterValidator(_ufm)] = ""
    """https://NAME[:PORT] of the UFM that reserves SHARP resources for jobs with a tree."""
    ufm_by: Literal["pkeys", "apps"] = "pkeys"
    """How UFM takes reservations: as members of PKeys, or, older ones, as applications."""
    ufm_pkeys: Annotated[str, AfterValidator(_pkeys)] = ""
    """PKeys that are the controller's own, one for each job: 0x0010-0x001f,0x0100."""
    ufm_guids: OptionalPath = None
    """JSON file of the GUIDs of each host's ports: {"h0": ["0x0002c90300a1b2c3"]}."""
    ufm_credentials: OptionalPath = None
    """File of one line, USER:PASSWORD or a token, that nobody else may read (mode 600)."""
    ufm_ca: OptionalPath = None
    """PEM file of the authority of UFM's certificate; by default those that the machine trusts."""
    ufm_answer_ms: int = Field(default=10_000, ge=50, le=600_000)
    """UFM has so long for each answer."""
    job_secret: OptionalPath = None
    """File of 32 random bytes or more, the root switch's, that makes jobs' tokens; else one in its store."""
    token_days: int = Field(default=365, ge=1, le=36500)
    """A token is good so long from the submission of its job on, and should outlast it."""
    lease_ms: int = Field(default=30_000, ge=100, le=3_600_000)
    """A host or switch of which nothing is heard for so long is lost, and with it the jobs that run there."""
    report_ms: int = Field(default=2000, ge=10, le=600_000)
    """Hosts and switches report at least so often; of many less often, 256 a second or 4 times in a lease."""
    share_max: int = Field(default=4, ge=1, le=1024)
    """Jobs that may share by turns what the cluster file counts as one job's slots in a switch."""
    placement: PlacementRule = "fragments"
    """Hosts of jobs: fragments, those that leave fewest fragments where the cluster has equal pods, else the
    lowest free ones; or paring, chosen together with the tree, which needs trees = paring."""
    fabric: OptionalPath = None
    """For placement = paring: the fabric file of the switches. Ranks are numbered in an order in which the
    fabric's own tree, on which rings begin, adds them as well as the planned one."""
    trees: TreeRule = "roots"
    """Trees of jobs that share by turns: roots, those of the nearest roots; or paring, planned for each job
    when it comes, for the highest rate by the capacities in the cluster file (docs/planning.md)."""
    host_gbit_s: Annotated[str, AfterValidator(_rate)] = "100"
    """For trees = paring: Gbit/s that a host sends at most, such as 25, 2.5 or 10/3."""
    fabric_root: Annotated[str, AfterValidator(_name_or_none)] = ""
    """Switch with the fabric's control plane; only it may report trees. By default the first that does."""
    jobs_max: int = Field(default=4096, ge=1, le=1 << 16)
    """Jobs that are not over."""
    metrics: MetricsAddress = ""
    """Tell Prometheus here: ADDRESS:PORT, or a socket's path. Whoever reaches it may read."""
    tracing: Literal["on", "off"] = "off"
    """on: send spans to an OpenTelemetry collector, which OTEL_EXPORTER_OTLP_ENDPOINT names."""
    log_level: LogLevel = "info"
    """debug, info, warning or error."""
    log_format: LogFormat = "text"
    """text, or json: one object a line, for programs."""

    @property
    def jobs_path(self) -> Path:
        return self.dir / JOBS_SOCKET

    @property
    def agents_path(self) -> Path:
        return self.dir / AGENTS_SOCKET

    @property
    def store_or_default(self) -> str:
        return self.store or str(self.dir / STORE_FILE)
