"""Figures of ``inaproto bench peers``: from turns to rows, ratios and the JSON document.

A sample is the mean time of an all-reduce of one turn, of the rank that took longest. A row has the median
of its samples, one for each round. Ratios are those of the samples of one round: what disturbs one
contender disturbs the other. A row with a wrong element counts for nothing.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Protocol

from inaproto_hil.bench.allreduce.link_traffic import Volume
from inaproto_hil.bench.comparison import Ratio
from inaproto_hil.bench.peers.config import FLOAT_BYTES, OTHERS, OURS, THROUGH_SWITCH, Config
from inaproto_hil.bench.report import Row, bounds

VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class TurnResult:
    operations: int
    seconds: float
    """Of the rank that took longest, for all of them."""
    cpu_s: Mapping[str, float]
    """Of the processes of the contender, by what they are; the small all-reduce before included."""
    machine_cpu_s: float
    """Of the whole machine meanwhile: kernel threads, and whatever else ran."""
    whole_s: float
    """From the small all-reduce before to the end of the last rank."""
    nbytes: int
    """Of vector, the same."""
    resent: int | None
    wrong: int
    example: str
    path: str


@dataclass(frozen=True, slots=True)
class Entry:
    """A contender at one size."""

    config: Config
    row: Row
    turns: tuple[TurnResult, ...]
    """Of the rounds, without the warm-up."""
    resent: int | None
    packets: int | None
    """What inaproto's hosts send if nothing is sent again."""

    @property
    def key(self) -> tuple[int, int]:
        return self.row.ranks, self.row.size_bytes


def entry_of(config: Config, name: str, size: int, turns: Sequence[TurnResult], warm_up: TurnResult) -> Entry:
    """Of the turns of all rounds."""
    cpu_s = sum(sum(turn.cpu_s.values()) * size / turn.nbytes for turn in turns)
    every = [warm_up, *turns]
    row = Row(
        size_bytes=size,
        count=size // FLOAT_BYTES,
        dtype="float32",
        op="sum",
        ranks=config.hosts,
        samples_s=tuple(turn.seconds / turn.operations for turn in turns),
        wrong=sum(turn.wrong for turn in every),
        cpu_s=cpu_s,
        wrong_example=next((turn.example for turn in every if turn.example), ""),
        asked=name,
        path="+".join(sorted({turn.path for turn in turns if turn.path})),
    )
    resent = [turn.resent for turn in turns if turn.resent is not None]
    return Entry(
        config,
        row,
        tuple(turns),
        sum(resent) if len(resent) == len(turns) else None,
        _packets(config, size, turns) if name in THROUGH_SWITCH and config.ranks_per_daemon == 1 else None,
    )


def _packets(config: Config, size: int, turns: Sequence[TurnResult]) -> int:
    """Of all hosts; the small all-reduces count."""

    def one(nbytes: int) -> int:
        return Volume.of(nbytes, mtu=config.mtu, message_packets=config.message_packets).packets

    lead_in = sum(one(turn.nbytes - turn.operations * size) for turn in turns)
    return config.hosts * (lead_in + sum(turn.operations for turn in turns) * one(size))


class Spent(Protocol):
    """A turn, as far as its processor time goes."""

    @property
    def cpu_s(self) -> Mapping[str, float]: ...

    @property
    def machine_cpu_s(self) -> float: ...

    @property
    def whole_s(self) -> float: ...


def others_share(turns: Sequence[Spent], cores: int) -> float:
    """Of the machine's CPU time in these turns, what was not the contender's: other programs, the kernel."""
    others = sum(turn.machine_cpu_s - sum(turn.cpu_s.values()) for turn in turns)
    return max(0.0, others / (cores * sum(turn.whole_s for turn in turns)))


def entry_dict(entry: Entry, cores: int) -> dict[str, Any]:
    config = entry.config
    row = entry.row.as_dict(config.line_rate_bps)
    contender = row.pop("asked")
    turns = entry.turns
    gigabytes = sum(turn.nbytes for turn in turns) / 1e9

    def per_gb(seconds: Sequence[float]) -> float:
        return sum(seconds) / gigabytes

    parts = {kind: per_gb([turn.cpu_s[kind] for turn in turns]) for kind in turns[0].cpu_s}
    quartiles = statistics.quantiles(entry.row.samples_s, n=4, method="inclusive") if turns[1:] else []
    return {
        "contender": contender,
        "hosts": entry.row.ranks,
        **row,
        "time_us_quartiles": [round(1e6 * value, 3) for value in quartiles] or None,
        "cpu_s_per_gb_parts": parts,
        "switch_gbps_per_core": switch_rate(entry.row.ranks, parts) if row["path"] == "switch" else None,
        "machine_cpu_s_per_gb": per_gb([turn.machine_cpu_s for turn in turns]),
        "others_share": others_share(turns, cores),
        "pct_bound": bound(config, contender),
        "resent": entry.resent,
        "packets": entry.packets,
        "resent_share": None if entry.resent is None or not entry.packets else entry.resent / entry.packets,
        "turns": [asdict(turn) for turn in turns],
    }


def switch_rate(hosts: int, cpu_s_per_gb: Mapping[str, float]) -> float | None:
    """Gb/s of all hosts together that one core of the switch daemon takes in, and as much that it sends."""
    seconds = cpu_s_per_gb.get("switch")
    return 8 * hosts / seconds if seconds else None


def bound(config: Config, contender: str) -> float | None:
    """Percent of a line that algbw can come to; None without links."""
    if config.link is None:
        return None
    found = bounds(mtu=config.mtu, ranks=config.hosts)
    return 100 * found["ina" if contender in THROUGH_SWITCH else "ring"]


def ratios(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """How many times as long each peer takes as inaproto, of the same hosts and size."""
    found = []
    for ours in entries:
        if ours.row.asked not in OURS:
            continue
        for theirs in entries:
            if theirs.row.asked in OTHERS and theirs.key == ours.key:
                ratio = Ratio(ours.row, theirs.row).as_dict()
                ratio["peer"], ratio["contender"] = ratio.pop("path"), ratio.pop("to")
                found.append({"hosts": ours.row.ranks, **ratio})
    return found


def document(
    *,
    config: Config,
    hosts: Sequence[int],
    env: Mapping[str, Any],
    peers: Mapping[str, Any],
    entries: Sequence[Entry],
    failures: Sequence[str] = (),
) -> dict[str, Any]:
    """The whole report for ``json.dump``. ``failures``: why other rows are missing."""
    rows = [entry_dict(entry, env["cores"]) for entry in entries]
    return {
        "version": VERSION,
        "benchmark": "peers",
        "config": {**asdict(config), "hosts": list(hosts)},
        "env": dict(env),
        "peers": dict(peers),
        "line_rate_bps": config.line_rate_bps,
        "failures": list(failures),
        "wrong": sum(row["wrong"] for row in rows),
        "ratios": ratios(entries),
        "rows": rows,
    }
