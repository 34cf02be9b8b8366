"""The report of a campaign: ``report.json``, and ``report.html`` rendered from the same values.

The page needs nothing from elsewhere: its pictures are within it.
"""

from __future__ import annotations

import base64
import html
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from inaproto.sim.campaign.failure import of_kind
from inaproto.sim.campaign.kinds import WorldKind
from inaproto.sim.campaign.marks import declared_of, meaning_of
from inaproto.sim.campaign.rules import rules_of
from inaproto.sim.frames.recorder import say_time
from inaproto_hil.rigs.environment import describe
from inaproto_hil.soak.block import Told
from inaproto_hil.soak.campaign import Campaign, write_whole
from inaproto_hil.soak.plots import pictures
from inaproto_hil.soak.verdict import State, Verdict

VERSION: Final = 1
_MESSAGES: Final = {
    WorldKind.CONTROL.value: "messages",
    WorldKind.WEATHER.value: "messages",
    WorldKind.TREES.value: "messages",
    WorldKind.OVERLAY.value: "words",
}
_STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; color: #20242b; background: #fff; margin: 2rem auto;
       max-width: 66rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: 0; } h2 { font-size: 1.15rem; margin-top: 2rem; }
.passed { color: #1a7a37; } .failed { color: #c62828; }
.open, .none { color: #8a5a00; } .pale { color: #6a7078; }
table { border-collapse: collapse; }
td, th { padding: .2rem .9rem .2rem 0; text-align: left; vertical-align: top; }
td.number { text-align: right; font-variant-numeric: tabular-nums; } tr.never td { color: #c62828; }
code, pre { font: 13px/1.45 ui-monospace, monospace; background: #f4f5f7; padding: .1rem .3rem; }
pre { overflow-x: auto; padding: .8rem; } img { max-width: 100%; }
.pictures { display: grid; grid-template-columns: repeat(auto-fit, minmax(28rem, 1fr)); gap: 1rem; }
"""


def document(ours: Campaign, verdict: Verdict, told: list[Told], wall_s: float) -> dict[str, Any]:
    """The whole report for ``json.dump``."""
    tally = ours.tally
    logs = {one.seed: {"log": one.log, "shrunk_log": one.shrunk_log} for one in told}
    variant = f" --with {ours.plan.variant}" if ours.plan.variant else ""
    kind = WorldKind(ours.plan.world)
    declared = declared_of(kind)
    marks = [
        {
            "name": name,
            "declared": name in declared,
            "meaning": meaning_of(name),
            "seeds": seeds,
            "times": times,
        }
        for name, (seeds, times) in sorted(tally.marks.items())
    ]
    marks += [
        {"name": name, "declared": True, "meaning": declared[name], "seeds": 0, "times": 0}
        for name in verdict.unseen
    ]
    return {
        "version": VERSION,
        "report": "soak",
        "passed": verdict.state is State.PASSED,
        "state": verdict.state.value,
        "verdict": str(verdict),
        "plan": asdict(ours.plan),
        "finished": ours.finished,
        "env": describe(),
        "wall_s": round(wall_s, 3),
        "seeds": tally.seeds,
        "worlds_with_faults": tally.faulted,
        "worlds_in_bad_weather": tally.weathered,
        "all_reduces": tally.operations,
        "frames": tally.frames,
        "events": tally.events,
        "virtual_s": tally.virtual_ns / 1e9,
        "core_steps": {"total": tally.steps_total, **tally.steps},
        "cpu_s": tally.cpu_s,
        "steps_per_s_per_core": tally.steps_per_s,
        "steps_per_s_per_core_median_of_blocks": tally.steps_per_s_median,
        "rules": rules_of(kind),
        "marks": marks,
        "marks_required": verdict.marks_required,
        "marks_unseen": list(verdict.unseen),
        "longest_stops": [{"cause": kind, **asdict(stops)} for kind, stops in tally.longest_stops()],
        "failures": [
            {
                **asdict(failure),
                "rerun": f"inaproto soak{of_kind(kind)} --seed {failure.seed}{variant}",
                **logs.get(failure.seed, {}),
                "differs": ours.differing.get(failure.seed),
            }
            for failure in tally.failures
        ],
    }


def write_report(folder: Path, ours: Campaign, verdict: Verdict, told: list[Told], wall_s: float) -> Path:
    """Both files; returns the path of the page."""
    folder.mkdir(parents=True, exist_ok=True)
    report = document(ours, verdict, told, wall_s)
    write_whole(folder / "report.json", json.dumps(report, indent=1) + "\n")
    page = folder / "report.html"
    write_whole(page, _page(report, ours, told))
    return page


def _page(report: dict[str, Any], ours: Campaign, told: list[Told]) -> str:
    state = report["state"]
    env = report["env"]
    commit = (env["commit"] or "unknown")[:12] + (" with changes" if env["modified"] else "")
    machine = f"Python {env['python']}, {env['cpu']}, {env['cores_usable']} cores"
    parts = [
        "<!doctype html><html lang=en><head><meta charset=utf-8><title>inaproto soak</title>",
        f"<style>{_STYLE}</style></head><body>",
        "<h1>Soak of simulated clusters</h1>",
        f'<p class="{state}"><strong>{html.escape(report["verdict"])}</strong></p>',
        f"<p class=pale>inaproto {ours.plan.version}, commit {commit}, {html.escape(machine)}</p>",
        _numbers(report),
        _failures(report, told),
        _stops(report),
        "<h2>Pictures</h2><div class=pictures>",
        *(
            f'<figure><img alt="{html.escape(name)}" src="{source}"></figure>'
            for name, source in pictures(ours.tally, WorldKind(ours.plan.world))
        ),
        "</div>",
        _rules(report),
        _marks(report),
        "</body></html>\n",
    ]
    return "\n".join(parts)


def _numbers(report: dict[str, Any]) -> str:
    def number(value: float | None) -> str:
        return "-" if value is None else f"{value:,.0f}"

    steps = ", ".join(f"{name} {count:,}" for name, count in report["core_steps"].items() if name != "total")
    rows = {
        "seeds": f"{report['seeds']:,} ({report['worlds_with_faults']:,} with faults, "
        f"{report['worlds_in_bad_weather']:,} in bad weather)",
        "results of all-reduces": number(report["all_reduces"]),
        _MESSAGES.get(report["plan"]["world"], "frames"): number(report["frames"]),
        "virtual time": say_time(round(report["virtual_s"] * 1e9)),
        "core steps": f"{number(report['core_steps']['total'])} ({steps})",
        "core steps/s per core": f"{number(report['steps_per_s_per_core'])} over all, median of blocks "
        f"{number(report['steps_per_s_per_core_median_of_blocks'])}",
        "wall time of this run": f"{report['wall_s']:,.1f} s",
    }
    cells = "".join(f"<tr><th>{name}</th><td>{html.escape(value)}</td></tr>" for name, value in rows.items())
    return f"<table>{cells}</table>"


def _failures(report: dict[str, Any], told: list[Told]) -> str:
    if not report["failures"]:
        return "<h2>Failures</h2><p>None.</p>"
    variant = f" --with {report['plan']['variant']}" if report["plan"]["variant"] else ""
    lines = [
        "<h2>Failures</h2><table><tr><th>seed</th><th>broken rule</th><th>evidence</th><th>again</th></tr>"
    ]
    for failure in report["failures"]:
        evidence = failure["evidence"]
        evidence = evidence if len(evidence) < 300 else evidence[:300] + " ..."
        if failure["differs"] is not None:
            evidence = f"The program is two programs: {failure['differs']}"
        again = [failure["rerun"]]
        logs = [failure[key] for key in ("log", "shrunk_log") if failure.get(key)]
        again += [f"inaproto replay {log}{variant}" for log in logs]
        commands = "<br>".join(f"<code>{html.escape(line)}</code>" for line in again)
        lines.append(
            f"<tr><td class=number>{failure['seed']}</td><td>{html.escape(failure['rule'])}</td>"
            f"<td>{html.escape(evidence)}</td><td>{commands}</td></tr>"
        )
    lines.append("</table>")
    for one in told:
        text = html.escape(one.shrunk_text or one.text)
        picture = ""
        if one.drawing is not None:
            drawing = base64.b64encode(Path(one.drawing).read_bytes()).decode()
            picture = f'<img alt="sequence diagram" src="data:image/svg+xml;base64,{drawing}">'
        lines.append(
            f"<details><summary>seed {one.seed}, told{' and drawn' * bool(picture)}</summary>"
            f"<pre>{text}</pre>{picture}</details>"
        )
    return "\n".join(lines)


def _stops(report: dict[str, Any]) -> str:
    if not report["longest_stops"]:
        return ""
    rows = "\n".join(
        f"<tr><td>{html.escape(stops['cause'])}</td><td class=number>{stops['jobs']:,}</td>"
        f"<td class=number>{stops['seed']}</td><td>{html.escape(stops['said'])}</td></tr>"
        for stops in report["longest_stops"]
    )
    return (
        "<h2>Longest stops</h2><p>Of each job in each world the longest time in which it did not go on, by "
        "what caused it, and the longest of these.</p><table><tr><th>cause</th><th>jobs</th><th>seed</th>"
        f"<th>longest</th></tr>{rows}</table>"
    )


def _rules(report: dict[str, Any]) -> str:
    rows = "\n".join(
        f"<tr><td>{html.escape(name)}</td><td>{html.escape(meaning)}</td></tr>"
        for name, meaning in report["rules"].items()
    )
    return (
        "<h2>Rules</h2><p>What must always hold; each world is checked for all of them.</p>"
        f"<table><tr><th>rule</th><th>meaning</th></tr>{rows}</table>"
    )


def _marks(report: dict[str, Any]) -> str:
    rows = []
    for mark in sorted(report["marks"], key=lambda mark: (not mark["declared"], mark["name"])):
        meaning = (mark["meaning"] or "") + ("" if mark["declared"] else " (not declared)")
        never = " class=never" if not mark["seeds"] else ""
        rows.append(
            f"<tr{never}><td>{html.escape(mark['name'])}</td><td>{html.escape(meaning)}</td>"
            f"<td class=number>{mark['seeds']:,}</td><td class=number>{mark['times']:,}</td></tr>"
        )
    return (
        "<h2>Marks</h2><p>What must happen sometimes; a campaign that never meets a declared mark tests less "
        "than it says.</p><table><tr><th>mark</th><th>meaning</th><th>seeds</th><th>times</th></tr>"
        + "\n".join(rows)
        + "</table>"
    )
