"""The models file: what is trained by push and pull, on which hosts, and which parameter servers hold it.

One TOML file for all of them; each daemon is told its own name in it::

    [[hosts]]                           # each has one worker of a model
    name = "h0"
    address = "tls://10.0.0.1:7500"     # where its children in a tree dial
    # link_mbit = 10000                 # of its access link, which models of different priority share

    [[servers]]
    name = "ps0"
    address = "tls://10.0.1.1:7500"

    [[models]]
    name = "digits"
    dtype = "float32"                   # int32, int64, float32 or float64
    elements = 7850
    # fraction_bits = 20                # with integers: workers have float64, which travels as fixed point
    # servers = ["ps0"]                 # a shard each, in this order; by default all
    # workers = ["h0", "h1"]            # by default all hosts
    # tree = "heap"                     # direct, heap, or rack
    # in_degree = 2                     # of a heap
    # tune_in_degree = [2, 4, 8]        # or of these, the one that suits load and links; in_degree first
    # racks = [["h0"], ["h1"]]          # of rack: an aggregator in each
    # shared = false                    # the same order of hosts in the trees of all servers
    # seed = 1                          # of these orders
    # staleness = 0                     # clocks that a pull may be behind
    # tune_staleness = false            # pulls that name none: what suits load and convergence, at most that
    # drift_max = 0.02                  # ... by how much weights may be stale then, in parts of their length
    # priority = 0                      # of its connections: 255 goes first
    # heartbeat_ms = 1000               # a host that is silent for three of them is dead

Addresses are ``tls://HOST:PORT``, ``tcp://HOST:PORT`` on loopback alone, or ``unix:PATH``. From the places in
the lists come the numbers of nodes and workers, so all daemons need the same file: they compare its digest.
"""

from __future__ import annotations

import hashlib
import os
import random
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple

import numpy as np
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from inaproto.core.models.tree.trees import OverlayTree, direct_tree, heap_tree, rack_tree, shard_trees
from inaproto.daemon.net.control_address import is_loopback, parse_listen
from inaproto.daemon.net.names import require_name
from inaproto.daemon.net.unix_sockets import require_path_fits
from inaproto.errors import ConfigError
from inaproto.wire.messages.clocks import WorkerId
from inaproto.wire.messages.models import NodeId

MODELS_BYTES_MAX: Final = 1 << 20
PROCESSES_MAX: Final = 4096
ModelDtype = Literal["int32", "int64", "float32", "float64"]


class Tcp(NamedTuple):
    host: str
    port: int
    is_tls: bool

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'tls' if self.is_tls else 'tcp'}://{host}:{self.port}"


Address = Tcp | Path


def parse_address(value: object) -> object:
    """Raises ``ValueError``, as pydantic wants it."""
    if not isinstance(value, str):
        raise ValueError("must be text such as tls://10.0.0.1:7500")
    kind, _, rest = value.partition(":")
    if kind == "unix":
        path = Path(rest).expanduser()
        try:
            require_path_fits(path, "address")
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return path
    if kind not in ("tcp", "tls") or not rest.startswith("//"):
        raise ValueError("must be tls://HOST:PORT, tcp://HOST:PORT or unix:PATH")
    endpoint = parse_listen(rest[2:])
    if not endpoint.port:
        raise ValueError("must name a port")
    if kind == "tcp" and not is_loopback(endpoint.host):
        raise ValueError("tcp:// is for loopback alone; tls:// proves between machines who the other is")
    return Tcp(endpoint.host, endpoint.port, kind == "tls")


class Process(BaseModel):
    """A host or a server."""

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)

    name: Annotated[str, AfterValidator(require_name)]
    address: Annotated[Tcp | Path, BeforeValidator(parse_address)]
    link_mbit: int | None = Field(default=None, ge=1, le=10_000_000, strict=True)
    """Of its access link, each way: what priorities share out; None: they do nothing here."""


class Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, AfterValidator(require_name)]
    dtype: ModelDtype = "float32"
    elements: int = Field(ge=1, le=1 << 40, strict=True)
    fraction_bits: int | None = Field(default=None, ge=0, le=62, strict=True)
    """Fixed point: workers have float64, what travels is integers of ``dtype``, times 2**fraction_bits."""
    servers: tuple[str, ...] = ()
    workers: tuple[str, ...] = ()
    tree: Literal["direct", "heap", "rack"] = "heap"
    in_degree: int = Field(default=2, ge=1, le=PROCESSES_MAX, strict=True)
    tune_in_degree: tuple[Annotated[int, Field(ge=1, le=PROCESSES_MAX, strict=True)], ...] = Field(
        default=(), max_length=16
    )
    """To choose from at run time; empty: it stays as it is."""
    racks: tuple[tuple[str, ...], ...] = ()
    shared: bool = Field(default=False, strict=True)
    seed: int = Field(default=1, ge=0, lt=1 << 63, strict=True)
    staleness: int = Field(default=0, ge=0, le=1 << 20, strict=True)
    tune_staleness: bool = Field(default=False, strict=True)
    drift_max: float = Field(default=0.02, gt=0, le=100, strict=True)
    priority: int = Field(default=0, ge=0, le=255, strict=True)
    heartbeat_ms: int = Field(default=1000, ge=1, le=3_600_000, strict=True)
    ahead_max: int = Field(default=0, ge=0, le=1 << 20, strict=True)
    """Updates of a worker that its server has not merged; 0: 8 more than the staleness."""
    teardown_failures: int = Field(default=2, ge=1, le=PROCESSES_MAX, strict=True)
    """So many hosts dead at once, and all send to the server themselves."""
    removal_ms: int = Field(default=0, ge=0, le=1_000_000_000, strict=True)
    """A worker whose host has been away for so long is removed; 0: never."""


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    hosts: tuple[Process, ...] = Field(min_length=1, max_length=PROCESSES_MAX)
    servers: tuple[Process, ...] = Field(min_length=1, max_length=PROCESSES_MAX)
    models: tuple[Model, ...] = Field(min_length=1, max_length=256)


@dataclass(frozen=True)
class Shard:
    """Part of a model: its elements ``first`` up to ``end``, held by a server, below which is a tree."""

    model: PlacedModel
    number: int
    first: int
    end: int
    server: str
    tree: OverlayTree
    """At the start; the others of ``trees`` may take its place at run time."""
    trees: tuple[OverlayTree, ...]
    """One for each of the model's ``degrees``."""

    @property
    def elements(self) -> int:
        return self.end - self.first

    @property
    def nbytes(self) -> int:
        return self.elements * self.model.dtype.itemsize

    def __str__(self) -> str:
        return f"{self.model.name}/{self.number}"


@dataclass(frozen=True)
class PlacedModel:
    """A model with its places: node ``i`` is the host of worker ``i``, the servers' nodes come after."""

    settings: Model
    workers: tuple[str, ...]
    servers: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.settings.name

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self.settings.dtype)

    @property
    def worker_dtype_name(self) -> ModelDtype:
        return self.settings.dtype if self.settings.fraction_bits is None else "float64"

    @property
    def worker_dtype(self) -> np.dtype[Any]:
        """Element type of what workers push and pull."""
        return np.dtype(self.worker_dtype_name)

    @property
    def elements(self) -> int:
        return self.settings.elements

    @property
    def degrees(self) -> tuple[int, ...]:
        """In-degrees that its trees may have, the one of the start first."""
        first = self.settings.in_degree
        return (first, *(degree for degree in self.settings.tune_in_degree if degree != first))

    def worker(self, host: str) -> WorkerId | None:
        return WorkerId(self.workers.index(host)) if host in self.workers else None

    def node_of(self, process: str) -> NodeId:
        """Raises ``ValueError`` for a stranger."""
        return NodeId((*self.workers, *self.servers).index(process))

    def process_of(self, node: NodeId) -> str:
        return (*self.workers, *self.servers)[node]

    @cached_property
    def shards(self) -> tuple[Shard, ...]:
        """In the order of the servers; all sizes are within one element."""
        count = len(self.servers)
        ends = [self.elements * (number + 1) // count for number in range(count)]
        by_degree = [_trees(self, degree) for degree in self.degrees]
        shards = []
        for number, server in enumerate(self.servers):
            trees = tuple(trees[number] for trees in by_degree)
            first = ends[number - 1] if number else 0
            shards.append(Shard(self, number, first, ends[number], server, trees[0], trees))
        return tuple(shards)


@dataclass(frozen=True)
class Models:
    """All of a file; made by :func:`load_models`."""

    processes: Mapping[str, Address]
    hosts: tuple[str, ...]
    servers: tuple[str, ...]
    models: tuple[PlacedModel, ...]
    digest: str
    rates: Mapping[str, int]
    """Rates of the access links that are known, bytes/s each way."""

    @property
    def connections_max(self) -> int:
        """Connections that one process can have at once as a parent: one of each host and shard."""
        return sum(len(model.workers) * len(model.servers) for model in self.models)

    def require_memory(self, process: str) -> None:
        """Raises ``ConfigError`` for more than this machine has, before anything is allocated."""
        has = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        needs = Counter[str]()
        for shard in self.shards_of(process):
            needs[shard.model.name] += shard.nbytes
        if needs.total() > has:
            each = ", ".join(f"{name} {nbytes / (1 << 30):.4g} GiB" for name, nbytes in needs.most_common(3))
            raise ConfigError(
                f"models: {process} would hold more than the {has / (1 << 30):.4g} GiB of memory of this "
                f"machine: {each}; give the model more servers, or fewer elements"
            )

    def shards_of(self, process: str) -> list[Shard]:
        """In whose trees it is."""
        return [
            shard
            for model in self.models
            for shard in model.shards
            if process in (*model.workers, shard.server)
        ]


def load_models(file: Path) -> Models:
    """Read and check. Raises ``ConfigError`` that names file, table and field."""
    try:
        with file.open("rb") as stream:
            data = stream.read(MODELS_BYTES_MAX + 1)
        if len(data) > MODELS_BYTES_MAX:
            raise ConfigError(f"is longer than {MODELS_BYTES_MAX} bytes")
        return models_of(tomllib.loads(data.decode("utf-8")), file.absolute().parent)
    except OSError as error:
        raise ConfigError(f"models file {file}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"models file {file}: is not UTF-8 text (byte {error.start})") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"models file {file}: is not TOML: {error}") from None
    except ConfigError as error:
        lines = str(error).split("\n")
        raise ConfigError("\n".join(f"models file {file}: {line}" for line in lines)) from None


def models_of(document: Mapping[str, Any], directory: Path) -> Models:
    """``document`` as TOML gives it; relative paths are from ``directory``. Raises ``ConfigError``."""
    try:
        found = _File.model_validate(document)
    except ValidationError as error:
        raise ConfigError(_describe(error)) from None
    processes: dict[str, Address] = {}
    for process in (*found.hosts, *found.servers):
        if process.name in processes:
            raise ConfigError(f"{process.name}: two hosts or servers have this name")
        address = process.address
        address = directory / address if isinstance(address, Path) else address
        if address in processes.values():
            raise ConfigError(f"{process.name}.address: {address} is another one's, too")
        processes[process.name] = address
    hosts = tuple(process.name for process in found.hosts)
    servers = tuple(process.name for process in found.servers)
    models = tuple(_placed(model, hosts, servers) for model in found.models)
    names = [model.name for model in models]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"{name}: two models have this name")
    digest = hashlib.sha256(found.model_dump_json().encode()).hexdigest()[:32]
    rates = {
        process.name: process.link_mbit * 125_000
        for process in (*found.hosts, *found.servers)
        if process.link_mbit is not None
    }
    return Models(processes, hosts, servers, models, digest, rates)


def _placed(model: Model, hosts: Sequence[str], servers: Sequence[str]) -> PlacedModel:
    def chosen(what: str, named: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
        for name in named:
            if name not in known:
                raise ConfigError(f"models.{model.name}.{what}: {name!r} is none of {', '.join(known)}")
            if list(named).count(name) > 1:
                raise ConfigError(f"models.{model.name}.{what}: {name!r} is in it twice")
        return tuple(named or known)

    workers = chosen("workers", model.workers, hosts)
    placed = PlacedModel(model, workers, chosen("servers", model.servers, servers))
    if model.elements < len(placed.servers):
        raise ConfigError(f"models.{model.name}.elements: fewer than its {len(placed.servers)} servers")
    if 0 < model.ahead_max <= model.staleness:
        raise ConfigError(
            f"models.{model.name}.ahead_max: {model.ahead_max} is not more than the staleness, "
            f"{model.staleness}"
        )
    if (model.tree == "rack") != bool(model.racks):
        raise ConfigError(f'models.{model.name}.racks: are given with tree = "rack", and only then')
    if model.fraction_bits is not None and not model.dtype.startswith("int"):
        raise ConfigError(f"models.{model.name}.fraction_bits: are for a dtype of integers")
    degrees = model.tune_in_degree
    if degrees and (model.tree != "heap" or list(degrees) != sorted({*degrees, model.in_degree})):
        raise ConfigError(
            f"models.{model.name}.tune_in_degree: is for a heap, ascends, and has its in_degree, "
            f"{model.in_degree}, in it: {list(degrees)}"
        )
    members = [name for rack in model.racks for name in rack]
    if model.racks and sorted(members) != sorted(workers):
        raise ConfigError(f"models.{model.name}.racks: must have each of {', '.join(workers)} once")
    return placed


def _trees(model: PlacedModel, in_degree: int) -> tuple[OverlayTree, ...]:
    settings = model.settings
    nodes = [NodeId(number) for number in range(len(model.workers))]
    roots = [model.node_of(server) for server in model.servers]
    orders = []
    for shard in range(1 if settings.shared else len(roots)):
        order = list(nodes)
        if settings.tree != "direct":
            random.Random(f"{settings.seed}/{model.name}/{shard}").shuffle(order)
        orders.append(order)
    racks = [[model.node_of(name) for name in rack] for rack in settings.racks]

    def build(root: NodeId, order: Sequence[NodeId]) -> OverlayTree:
        if settings.tree == "direct":
            return direct_tree(root, order)
        if settings.tree == "rack":
            return rack_tree(root, racks, order)
        return heap_tree(root, order, in_degree=in_degree)

    return shard_trees(roots, orders, build, shared=settings.shared)


def _describe(error: ValidationError) -> str:
    lines = []
    problems = error.errors(include_url=False, include_context=False)
    for problem in problems:
        path = ".".join(str(part) for part in problem["loc"])
        if any(one["loc"][: len(problem["loc"])] == problem["loc"] for one in problems if one is not problem):
            continue  # a list that is too short for its bad entries, of which each has a line
        reason = problem["msg"].removeprefix("Value error, ").replace("Input should", "it should")
        reason = reason.replace("a valid tuple", "a list").replace("Tuple should", "it should")
        if problem["type"] == "extra_forbidden":
            reason = "no such field"
        elif problem["type"] == "missing":
            reason = "is missing"
        else:
            reason = f"{problem['input']!r:.80} is not allowed: {reason}"
        lines.append(f"{path}: {reason}")
    return "\n".join(lines)
