"""The report in sentences and as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

Report = Mapping[str, Any]
SUMMED_BY: Final = {
    "switch": "in switches",
    "sharp": "by SHARP",
    "chain": "by the hosts, in a chain",
    "overlay": "by the hosts, in a tree of their own",
    "ring": "by the hosts, in a ring",
    "local": "within one host",
}
_IN_NETWORK: Final = ("switch", "sharp")
_LINE: Final = "{:<38}{:>12}{:>18}{:>9}{:>14}"


def summed_by(path: str) -> str:
    """In words; one that only a later release knows by its name."""
    return SUMMED_BY.get(path, path)


def seconds(value: float) -> str:
    """For people: 3 digits, in the unit that fits."""
    for limit, factor, unit in (
        (1e-3, 1e6, "us"),
        (1.0, 1e3, "ms"),
        (600.0, 1.0, "s"),
        (36_000.0, 1 / 60, "min"),
    ):
        if abs(value) < limit:
            return f"{value * factor:.3g} {unit}"
    return f"{value / 3600:.4g} h"


def percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def verdict(found: Report) -> list[str]:
    """Plain sentences, the most telling first."""
    lines = [_share(found)]
    if found["hosts"] < 2:
        return [*lines, "It ran on one host: there was nothing to sum in the network."]
    lines.append(_model(found))
    lines.append(_measured(found))
    lines.append(_why(found))
    return lines


def _share(found: Report) -> str:
    name, operations, nbytes = found["job"], found["operations"], found["bytes"]
    network = [one for one in found["paths"] if one["path"] in _IN_NETWORK]
    if not operations:
        return f"{name} has summed nothing yet."
    count, summed = sum(one["operations"] for one in network), sum(one["bytes"] for one in network)
    return (
        f"{name}: the network summed {percent(summed / nbytes if nbytes else None)} of {nbytes:,} bytes "
        f"({count:,} of {operations:,} all-reduces), the hosts the rest."
        if count
        else f"{name}: the network summed nothing of {nbytes:,} bytes in {operations:,} all-reduces."
    )


def _model(found: Report) -> str:
    model, links = found["by_model"], found["links"]["text"]
    if model is None:
        return "The cost model says nothing of it."
    told = (
        f"By the cost model ({links}), a ring of the {found['hosts']} hosts takes {seconds(model['ring_s'])} "
        f"for all of it; sums in the network saved {seconds(model['saved_s'])} of that"
    )
    rest = f", and would have saved {seconds(model['missed_s'])} of what the hosts summed"
    return f"{told}{rest if model['missed_s'] else ''}."


def _measured(found: Report) -> str:
    told = found["measured"]
    if told is None:
        return (
            "Nothing was measured to compare: no size of all-reduce was summed both in the network and by "
            "the hosts. inaproto bench allreduce times both."
        )
    saved, error = told["saved_s"], told["saved_s_95"]
    did = "saved" if saved > 0 else "cost"
    trust = ", which may be chance" if error >= abs(saved) else ""
    return (
        f"As it was measured, sums in the network {did} {seconds(abs(saved))} ± {seconds(error)} against the "
        f"hosts' {' and '.join(told['against'])} ({told['bytes_compared']:,} bytes in sizes of which there "
        f"were both){trust}."
    )


def _why(found: Report) -> str:
    if not found["reasons"]:
        return "No daemon gives a reason why hosts summed, nor for a ring that ended."
    first = max(found["reasons"], key=lambda one: (one["lasted_s"] or 0.0, one["times"]))
    more = len(found["reasons"]) - 1
    return f"Why not more of it: {first['reason']}{f', and {more} more' if more else ''}."


def text(found: Report) -> Iterator[str]:
    """Line by line."""
    yield from found["verdict"]
    yield ""
    yield _LINE.format("summed", "all-reduces", "bytes", "share", "took")
    for one in found["paths"]:
        row = summed_by(one["path"]), f"{one['operations']:,}", f"{one['bytes']:,}", percent(one["share"])
        yield _LINE.format(*row, seconds(one["busy_s"]))
    if found["reasons"]:
        yield ""
        yield "reasons"
        for one in found["reasons"]:
            yield f"  {one['times']:>5} x  {_reason(one)}"
    yield ""
    yield from agreement_lines(found)


def _reason(one: Mapping[str, Any]) -> str:
    lasted = "" if one["lasted_s"] is None else f" ({one['path']}, {seconds(one['lasted_s'])})"
    return f"{one['said_by']}: {one['reason']}{lasted}"


def agreement_lines(found: Report) -> Iterator[str]:
    """Whether it adds up."""
    hosts = found["agreement"]["hosts"]
    wrong = [
        f"host {name}, path {path}: its jobs had {one['by_jobs']:,} bytes, its counter has {one['counted']:,}"
        for name, paths in hosts.items()
        for path, one in paths.items()
        if one["by_jobs"] != one["counted"]
    ]
    if hosts:
        yield from wrong or [f"Counters of {len(hosts)} hosts agree with their jobs to the byte."]
    switches = found["agreement"]["switches"]
    if switches is not None:
        counted, needed = switches["results_out"], switches["packets_of_all_reduces"]
        if counted == needed:
            yield f"Counters of the switches agree: {counted:,} packets of results, none more or less."
        else:
            yield (
                f"The switches count {counted:,} packets of results, all-reduces of these hosts are "
                f"{needed:,}: rings broke, or a daemon was not asked or started anew."
            )


def notes(found: Report) -> Iterator[str]:
    """What a reader has to know of how it was made."""
    told, count = found["hosts_told"], found["hosts"]
    if len(told) < count:
        names = ", ".join(told)
        yield f"{len(told)} of the job's {count} hosts were asked: {names}. All hosts end the same ones."
    most = max(sum(one["operations_by_path"].values()) for one in found["by_host"])
    if found["parallel_rings"] == 1:
        for one in found["by_host"]:
            knows = int(sum(one["operations_by_path"].values()))
            if knows != most:
                yield (
                    f"Host {one['host']} knows of {knows:,} of {int(most):,} all-reduces: it was asked "
                    "earlier, or its daemon was started anew."
                )
    if found["other_runs"]:
        yield f"{found['other_runs']} earlier runs of this name are known; --run chooses one."
    options = {"rate_source": "--link-gbit", "hop_source": "--hop-us"}
    assumed = [option for figure, option in options.items() if found["links"][figure] == "assumed"]
    if len(assumed) == 2:
        yield f"Figures of the links are assumed: {' and '.join(assumed)} say how fast they are."
    elif assumed:
        yield f"One figure of the links is assumed: {assumed[0]} says it."
    if not found["has_ended"]:
        yield "The job has not ended; this is what it has had so far."
