"""The table of ``inaproto bench peers``, from its JSON document."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from inaproto_hil.bench.peers.config import BEFORE, BUFFER, GLOO, INAPROTO, MPI, OTHERS, PACKET_PORT

TABLE_WIDTH: Final = 150
"""At least."""
NAMES: Final = {
    INAPROTO: "inaproto",
    BUFFER: "inaproto, buffer",
    BEFORE: "before",
    GLOO: "gloo",
    MPI: "Open MPI",
}
"""What tables and pictures call them."""


def show_wide(
    show: Callable[[Console, Mapping[str, Any]], None], report: Mapping[str, Any], json_at: str | None
) -> None:
    """On stdout, unless the JSON goes there; a narrow terminal wraps lines, but no figure is cut off."""
    console = Console(stderr=json_at == "-", highlight=False)
    console.width = max(console.width, TABLE_WIDTH)
    show(console, report)


def show(console: Console, report: Mapping[str, Any]) -> None:
    """With where it was measured, and who was not."""
    print_table(console, heading(report), table(report), notes(report))


def print_table(console: Console, above: Sequence[str], table: Table, below: Sequence[str]) -> None:
    """Lines, the table, and lines."""
    for line in above:
        console.print(line, markup=False, soft_wrap=True)
    console.print(table)
    for line in below:
        console.print(line, markup=False, soft_wrap=True)


def table(report: Mapping[str, Any]) -> Table:
    """What is undefined is ``-``; a column of nothing else is left out."""
    lines = []
    columns = [
        "hosts",
        "size",
        "who",
        "ms",
        "least-most",
        "MB/s",
        "bus\nMB/s",
        "%\nline",
        "bound",
        "CPU\ns/GB",
    ]
    peers = [name for name in OTHERS if any(ratio["peer"] == name for ratio in report["ratios"])]
    columns += [
        "switch,\nhosts, ranks",
        "CPU of\nothers",
        "again",
        *[f"x {NAMES[name]}".replace(" ", "\n") for name in peers],
        "wrong",
    ]
    times = {
        (ratio["hosts"], ratio["size"], ratio["contender"], ratio["peer"]): ratio
        for ratio in report["ratios"]
    }
    for row in report["rows"]:
        key = row["hosts"], row["size"], row["contender"]
        by = "" if row["path"] in {"", "switch", "local"} else f" ({row['path']})"
        lines.append(
            [
                str(row["hosts"]),
                size_said(row["size"]),
                NAMES[row["contender"]] + by,
                f"{row['time_us'] / 1e3:.2f}",
                f"{row['time_us_min'] / 1e3:.2f}-{row['time_us_max'] / 1e3:.2f}",
                _number(row["algbw"], 1e3, 1),
                _number(row["busbw"], 1e3, 1),
                _number(row["pct_line"], 1, 1),
                _number(row["pct_bound"], 1, 1),
                _number(row["cpu_s_per_gb"], 1, 1),
                _parts(row),
                f"{row['others_share']:.0%}",
                _again(row),
                *[_ratio((times.get((*key, peer)) or {}).get("median")) for peer in peers],
                str(row["wrong"]),
            ]
        )
    found = Table(box=None, pad_edge=False)
    shown = [nth for nth in range(len(columns)) if not lines or any(line[nth] != "-" for line in lines)]
    for nth in shown:
        found.add_column(columns[nth], justify="left" if columns[nth] == "who" else "right", no_wrap=True)
    for line in lines:
        found.add_row(*[line[nth] for nth in shown])
    return found


def heading(report: Mapping[str, Any]) -> list[str]:
    """Where and how it was measured."""
    config, env = report["config"], report["env"]
    link = config["link"]
    where = "one machine" + (f", daemons apart (ports {config['port']})" if config["apart"] else "")
    if link is not None:
        where = f"links of {link['rate_bps'] / 1e6:g} Mbit/s" if link["rate_bps"] else "unshaped links"
        where += "" if config["port"] == PACKET_PORT else f" (ports {config['port']})"
        where += f", delay {link['delay_us']} us" if link["delay_us"] else ""
        where += f", loss {link['loss']:.3%}" if link["loss"] else ""
    other = ",".join(f"{name}={value}" for name, value in config["before_with"])
    busy = f", {config['busy']} busy loops beside" if config["busy"] else ""
    load = " then ".join(f"{one[0]:.1f}" for one in (env["load"], env["load_after"]))
    messages = f"window {config['window']} x {config['message_packets']} packets of {config['mtu']} B"
    messages += f", timer {config['transport_timeout']}"
    messages += f" (before: {other})" if other else ""
    return [
        f"# {where}{busy}; {messages}; medians of {config['rounds']} rounds",
        f"# {env['cpu']}, {env['cores_usable']} cores, kernel {env['kernel']}, load {load}",
    ]


def notes(report: Mapping[str, Any]) -> list[str]:
    """Who was not measured and why, and what was wrong."""
    return who_took_part(report) + [
        f"# WRONG: {row['wrong_example']}" for row in report["rows"] if row["wrong"]
    ]


def who_took_part(report: Mapping[str, Any]) -> list[str]:
    """Versions, who was not measured and why, and what failed."""
    found = [
        f"# {NAMES[name]}: not measured: {peer['why_not']}"
        for name, peer in report["peers"].items()
        if not peer["measured"]
    ]
    versions = [
        f"{NAMES[name]}: {peer['version']}" for name, peer in report["peers"].items() if peer["measured"]
    ]
    found += [f"# {'; '.join(versions)}"] if versions else []
    return found + [f"# FAILED: {failure}" for failure in report["failures"]]


def _parts(row: Mapping[str, Any]) -> str:
    parts = row["cpu_s_per_gb_parts"]
    if row["wrong"] or "switch" not in parts:
        return "-"
    return " ".join(f"{parts[kind]:.1f}" for kind in ("switch", "hosts", "ranks"))


def _again(row: Mapping[str, Any]) -> str:
    if row["resent"] is None:
        return "-"
    share = row["resent_share"]
    return str(row["resent"]) if not share else f"{row['resent']} ({share:.1%})"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"


def size_said(nbytes: int) -> str:
    """``1M``: with the largest unit of 1024 that leaves no rest."""
    for unit, name in ((1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")):
        if nbytes % unit == 0:
            return f"{nbytes // unit}{name}"
    return str(nbytes)


def _number(value: float | None, factor: float, digits: int) -> str:
    return "-" if value is None else f"{factor * value:.{digits}f}"
