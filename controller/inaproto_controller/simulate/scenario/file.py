"""The scenario file: a cluster, its speeds, the jobs, and the ways of running them that are compared.

One TOML file::

    seeds = 10                       # or a list; what is drawn is drawn anew for each

    [cluster]
    down = [4, 4, 4]                 # children of a switch, layer by layer: 64 hosts
    up = [1, 4, 4]                   # parents of a host, of a switch of layer 1, of layer 2
    quota = "link"

    [[jobs]]
    model = "opt-125m-4"
    hosts = 8
    steps = 100

    [[compare]]
    trees = "exclusive"

docs/planning.md has all keys. Every refusal names file and key, what is there, and what is allowed.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field, ValidationError, model_validator

from inaproto.core.sharing.model_trace import ModelTrace
from inaproto.errors import ConfigError
from inaproto_controller.cluster.capacity import CapacityModel
from inaproto_controller.cluster.model import CLUSTER, SHARING, measured, measured_names
from inaproto_controller.cluster.requests import HISTOGRAMS
from inaproto_controller.cluster.step_times import Speeds
from inaproto_controller.cluster.topology import FatTree, Quota
from inaproto_controller.planning.turns.policy import Policy
from inaproto_controller.simulate.arrivals import SECONDS_MAX
from inaproto_controller.simulate.group_order import GroupOrder
from inaproto_controller.simulate.presets import PLACEMENTS, TREES
from inaproto_controller.simulate.scenario.refusals import Table, did_you_mean, problems
from inaproto_controller.simulate.setting import Migration

SCENARIO_BYTES_MAX: Final = 1 << 24
HOSTS_MAX: Final = 1 << 17
JOBS_MAX: Final = 1_000_000
PRESETS: Final[Mapping[str, Speeds]] = {"cluster": CLUSTER, "sharing": SHARING}

Count = Annotated[int, Field(strict=True, ge=1, le=JOBS_MAX)]
Port = Annotated[int, Field(strict=True, ge=1, le=HOSTS_MAX)]
Seed = Annotated[int, Field(strict=True, ge=0, lt=1 << 31)]
Seconds = Annotated[float, Field(strict=True, ge=0, le=SECONDS_MAX, allow_inf_nan=False)]
Positive = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
PositiveSeconds = Annotated[float, Field(strict=True, gt=0, le=SECONDS_MAX, allow_inf_nan=False)]
Truth = Annotated[bool, Field(strict=True)]


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError(f"{text!r}: characters that cannot be printed")
    return text


Words = AfterValidator(_printable)
"""Of names that go into tables and pictures."""


class ClusterTable(Table):
    """A fat tree, by the ports of its switches or layer by layer, or whatever a file says."""

    degree: Annotated[int, Field(strict=True, ge=2, le=80, multiple_of=2)] | None = None
    """Ports of a switch: three layers, degree**3 / 4 hosts."""
    oversubscription: Positive | None = None
    """With degree: downlinks for each uplink, above hosts; 1 by default."""
    down: tuple[Port, ...] | None = None
    """Children of a switch of layer 1, 2, ..."""
    up: tuple[Port, ...] | None = None
    """Parents of a host, of a switch of layer 1, ...; as many numbers as down."""
    graph: str | None = None
    """JSON or GraphML of hosts, switches and links, relative to the scenario (docs/cluster-files.md)."""
    quota: Quota | None = None
    """What an operation with INA has for itself: link (the default) or switch. A graph says it itself."""
    capacity_model: CapacityModel | None = None
    """In place of quota, by the generation of SHARP: switch (Quantum) or port (Quantum-2); of a graph, for
    all its switches that sum."""

    @model_validator(mode="after")
    def _has_one_shape(self) -> ClusterTable:
        if self.graph is None:
            self.tree()
        elif self.model_fields_set - {"capacity_model"} != {"graph"}:
            raise ValueError("graph says it all; leave the other keys out, but for capacity_model")
        if self.quota is not None and self.capacity_model is not None:
            raise ValueError("capacity_model says the quota; give one of the two")
        return self

    @property
    def quota_or_default(self) -> Quota:
        """Quota of a fat tree."""
        if self.capacity_model is not None:
            return self.capacity_model.quota
        return self.quota or Quota.LINK

    def tree(self) -> FatTree:
        """Unless there is a graph."""
        by_layer = self.down is not None or self.up is not None
        if by_layer == (self.degree is not None):
            raise ValueError("give either degree, or down and up, or graph")
        if by_layer and self.oversubscription is not None:
            raise ValueError("oversubscription is for degree; with down and up it is what they say")
        try:
            tree = self._by_degree() if not by_layer else FatTree(self.down or (), self.up or ())
        except ConfigError as error:
            raise ValueError(str(error)) from None
        if tree.hosts > HOSTS_MAX:
            raise ValueError(f"{tree.hosts} hosts, at most {HOSTS_MAX}")
        return tree

    def _by_degree(self) -> FatTree:
        assert self.degree is not None
        half, ratio = self.degree // 2, self.oversubscription or 1.0
        uplinks = round(half / ratio)
        if uplinks < 1 or not math.isclose(uplinks * ratio, half):
            allowed = ", ".join(f"{half / count:g}" for count in range(1, half + 1))
            raise ValueError(
                f"oversubscription {ratio:g}: no whole uplinks for {half} downlinks; allowed: {allowed}"
            )
        return FatTree.of_degree(self.degree, uplinks=uplinks)


class SpeedsTable(Table):
    """Of network and processors; what is not given is the preset's."""

    preset: Literal["cluster", "sharing"] = "cluster"
    """Of the paper's evaluation: cluster (100 Gbit/s, twice that with INA) or sharing (slower INA, faster
    GPUs)."""
    bandwidth: Positive | None = None
    """Of an all-reduce without INA, bytes of the tensor a second."""
    ina_ratio: Positive | None = None
    """How many times the bandwidth is with INA."""
    latency: Seconds | None = None
    """Of an all-reduce, seconds."""
    gpu_speedup: Positive | None = None
    """Divides all times of all traces."""

    def speeds(self) -> Speeds:
        preset = PRESETS[self.preset]
        return Speeds(
            preset.bandwidth if self.bandwidth is None else self.bandwidth,
            preset.ina_ratio if self.ina_ratio is None else self.ina_ratio,
            preset.latency if self.latency is None else self.latency,
            preset.gpu_speedup if self.gpu_speedup is None else self.gpu_speedup,
        )


class MigrationTable(Table):
    """What a change of a job's tree costs, seconds; by default as the paper measured. total = 0: nothing."""

    release: Seconds | None = None
    """Until others may have the links of the old tree; not later than total."""
    total: Seconds = Migration().total
    """Until the job may use INA again."""

    @model_validator(mode="after")
    def _is_released_first(self) -> MigrationTable:
        if self.release is not None and self.release > self.total:
            raise ValueError(f"release {self.release:g} is later than total {self.total:g}")
        return self

    def migration(self) -> Migration:
        release = Migration().release if self.release is None else self.release
        return Migration(min(release, self.total), self.total)


class Operation(Table):
    start: Seconds
    """When its gradient is ready, from the start of the step."""
    size: Annotated[int, Field(strict=True, ge=1, lt=1 << 63)]
    """Bytes."""


class ModelTable(Table):
    """A model's training step: here, or in a JSON file of the same form."""

    file: str | None = None
    """Relative to the scenario."""
    duration: Seconds | None = None
    """From the start of a step until the framework waits for the results."""
    allreduces: tuple[Operation, ...] | None = None
    """In the order of issue, starts ascending."""

    @model_validator(mode="after")
    def _is_here_or_there(self) -> ModelTable:
        here = [self.duration is not None, self.allreduces is not None]
        if (self.file is not None) == any(here) or any(here) != all(here):
            raise ValueError("give either file, or duration and allreduces")
        return self


class JobsTable(Table):
    """Jobs that are alike."""

    model: str
    hosts: Port
    steps: Count
    count: Count = 1
    arrival: Seconds | None = None
    """By default as [arrivals] says."""


class StreamTable(Table):
    """Jobs that are drawn: model, hosts and 10, 20, ..., 100 steps."""

    count: Count
    trace: Annotated[int, Field(strict=True, ge=1, le=len(HISTOGRAMS))] | None = None
    """Host counts of one of the paper's ten traces ..."""
    hosts: dict[str, Annotated[int, Field(strict=True, ge=1, le=1 << 30)]] | None = None
    """... or weights of your own: {4 = 2, 8 = 1}."""
    models: tuple[str, ...] | None = None
    """All alike; by default the seven of the paper."""
    seed: Seed | None = None
    """One stream for all seeds (42: the published ones). By default each seed has its own."""

    @model_validator(mode="after")
    def _has_host_counts(self) -> StreamTable:
        if (self.trace is None) == (self.hosts is None):
            raise ValueError("give either trace or hosts")
        if self.models is not None and not self.models:
            raise ValueError("models: at least one")
        self.histogram()
        return self

    def histogram(self) -> dict[int, int]:
        if self.hosts is None:
            assert self.trace is not None
            return HISTOGRAMS[self.trace]
        wrong = [key for key in self.hosts if not (key.isdecimal() and int(key) >= 1)]
        if wrong or not self.hosts:
            raise ValueError(f"hosts: {wrong} are no host counts; write {{4 = 2, 8 = 1}}")
        return {int(key): weight for key, weight in self.hosts.items()}


class ArrivalsTable(Table):
    process: Literal["together", "poisson", "log"] = "together"
    """All at 0; at random times; or when, and with what, a file says."""
    rate: Positive | None = None
    """For poisson: jobs a second."""
    file: str | None = None
    """For log: CSV or JSON of arrival, model, hosts, steps; relative to the scenario."""

    @model_validator(mode="after")
    def _has_what_it_needs(self) -> ArrivalsTable:
        for process, key in (("poisson", "rate"), ("log", "file")):
            if (self.process == process) != (getattr(self, key) is not None):
                raise ValueError(f'{key} and process = "{process}" belong together')
        return self


class FailuresTable(Table):
    """Of hosts, switches and rows of racks: at random, or as a file says; seconds. What is not given never
    fails."""

    host_mtbf: Positive | None = None
    """From a host's repair to its next failure, on average."""
    host_mttr: PositiveSeconds | None = None
    """From its failure to its repair."""
    switch_mtbf: Positive | None = None
    switch_mttr: PositiveSeconds | None = None
    row_racks: Count | None = None
    """Racks of a row, which lose their power together."""
    row_mtbf: Positive | None = None
    row_mttr: PositiveSeconds | None = None
    file: str | None = None
    """JSON of events (docs/cluster-files.md), relative to the scenario."""
    checkpoint_steps: Count = 1
    """A job that loses a host goes on from its last multiple of these."""

    @model_validator(mode="after")
    def _has_pairs(self) -> FailuresTable:
        rows = self.row_mtbf, self.row_mttr
        pairs = [(self.host_mtbf, self.host_mttr), (self.switch_mtbf, self.switch_mttr), rows]
        if any((mtbf is None) != (mttr is None) for mtbf, mttr in pairs):
            raise ValueError("mtbf and mttr belong together")
        drawn = any(mtbf is not None for mtbf, _ in pairs)
        if drawn == (self.file is not None):
            raise ValueError("give either file, or mtbf and mttr of hosts, switches or rows")
        if rows != (None, None) and self.row_racks is None:
            raise ValueError("row_racks: say how many racks a row has")
        if self.row_racks is not None and rows == (None, None) and self.file is None:
            raise ValueError("row_racks: for row_mtbf and row_mttr, or for rows in file")
        return self


class VariantTable(Table):
    """A way to run the cluster."""

    name: Annotated[str, Field(max_length=60), Words] = ""
    """By default its placement, trees and policy."""
    placement: str = "least-fragments"
    trees: str = "sticky"
    policy: Policy = Policy.SCORE
    order: GroupOrder = GroupOrder.DESCENDING
    """Who is first at equal times; hash reproduces the published baseline."""
    weighted: Truth = False
    """The score policy multiplies gains with hosts."""
    pairwise: Truth = False
    """Jobs take turns with those whose trees exclude theirs, not with a whole group."""
    suffix: Truth = False
    """Only the last operations of a step that need INA ask for it."""
    jitter: Annotated[float, Field(strict=True, ge=0, lt=1, allow_inf_nan=False)] = 0.0
    """Largest share by which an operation takes more or less time."""
    tree_options: dict[str, bool | int | float | str] = Field(default_factory=dict)
    """The tree builder's own."""

    @model_validator(mode="after")
    def _is_known(self) -> VariantTable:
        for key, value, known in (
            ("placement", self.placement, PLACEMENTS),
            ("trees", self.trees, TREES),
        ):
            if value not in known:
                allowed = ", ".join(known)
                raise ValueError(f"{key} {value!r}{did_you_mean(value, known)}; allowed: {allowed}")
        return self

    @property
    def label(self) -> str:
        extras = [
            *(["weighted"] if self.weighted else []),
            *(["pairwise"] if self.pairwise else []),
            *(["suffix"] if self.suffix else []),
            *([f"jitter {self.jitter:g}"] if self.jitter else []),
            *([self.order.value] if self.order is not GroupOrder.DESCENDING else []),
            *(f"{key} {value}" for key, value in self.tree_options.items()),
        ]
        return self.name or " / ".join([self.placement, self.trees, self.policy.value, *extras])


class ScenarioFile(Table):
    title: Annotated[str, Field(max_length=200), Words] = ""
    seeds: Annotated[int, Field(strict=True, ge=1, le=10_000)] | tuple[Seed, ...] = 1
    """How many (0, 1, ...), or which."""
    until: PositiveSeconds | None = None
    """Stop there, seconds; by default when all jobs have ended."""
    cluster: ClusterTable
    speeds: SpeedsTable = SpeedsTable()
    migration: MigrationTable = MigrationTable()
    models: dict[Annotated[str, Field(min_length=1, max_length=60), Words], ModelTable] = Field(
        default_factory=dict
    )
    jobs: tuple[JobsTable, ...] = ()
    stream: StreamTable | None = None
    arrivals: ArrivalsTable = ArrivalsTable()
    failures: FailuresTable | None = None
    compare: tuple[VariantTable, ...] = (VariantTable(),)

    def seed_list(self) -> tuple[int, ...]:
        return self.seeds if isinstance(self.seeds, tuple) else tuple(range(self.seeds))


def read_scenario_file(path: Path) -> ScenarioFile:
    """Its tables, each right in itself. Raises ``ConfigError``."""
    try:
        return ScenarioFile.model_validate(tomllib.loads(read_text(path, "scenario")))
    except ValidationError as error:
        raise ConfigError(
            "\n".join(f"scenario {path}: {line}" for line in problems(error, ScenarioFile))
        ) from None
    except ValueError as error:  # an integer of too many digits, too
        raise ConfigError(f"scenario {path}: is not TOML: {error}") from None
    except RecursionError:
        raise ConfigError(f"scenario {path}: is not TOML: brackets within brackets, too many") from None


def read_text(path: Path, what: str) -> str:
    """Raises ``ConfigError``."""
    try:
        with path.open("rb") as stream:
            data = stream.read(SCENARIO_BYTES_MAX + 1)
        if len(data) > SCENARIO_BYTES_MAX:
            raise ConfigError(f"{what} {path}: is longer than {SCENARIO_BYTES_MAX} bytes")
        return data.decode("utf-8-sig")  # some editors begin with a byte order mark
    except OSError as error:
        raise ConfigError(f"{what} {path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{what} {path}: is not UTF-8 text (byte {error.start})") from None
    except ValueError as error:  # a name with a NUL
        raise ConfigError(f"{what} {str(path)!r}: cannot be read: {error}") from None


def read_models(file: ScenarioFile, folder: Path) -> dict[str, ModelTrace]:
    """Those of the scenario, by name. Raises ``ConfigError``."""
    found = {}
    for name, table in file.models.items():
        if name in measured_names():
            raise ConfigError(f"models.{name}: is part of inaproto; give yours another name")
        if table.file is None:
            fields: Any = table.model_dump(include={"duration", "allreduces"})
        else:
            path = folder / table.file
            try:
                fields = json.loads(read_text(path, f"models.{name}.file:"))
            except ValueError as error:
                raise ConfigError(f"models.{name}.file: {path} is not JSON: {error}") from None
            except RecursionError:
                raise ConfigError(
                    f"models.{name}.file: {path} is not JSON: brackets within brackets, too many"
                ) from None
        try:
            found[name] = ModelTrace.decode(name, fields)
        except ConfigError as error:
            where = f"models.{name}" + ("" if table.file is None else f".file: {folder / table.file}")
            raise ConfigError(
                f"{where}: {str(error).partition(': ')[2]}; allowed: "
                '{"duration": s, "allreduces": [{"start": s, "size": bytes}, ...]}'
            ) from None
    return found


def model_named(name: str, own: Mapping[str, ModelTrace], key: str) -> ModelTrace:
    """Raises ``ConfigError``."""
    if name in own:
        return own[name]
    known = [*own, *measured_names()]
    if name not in known:
        raise ConfigError(
            f"{key}: no model {name!r}{did_you_mean(name, known)}; there are {', '.join(known)}; "
            f"your own go into [models.{name}]"
        )
    return measured(name)
