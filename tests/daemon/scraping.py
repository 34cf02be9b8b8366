"""Asking a daemon for its metrics, as Prometheus does, and reading them with the library's own parser."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Mapping
from pathlib import Path

import trio
from prometheus_client.parser import text_string_to_metric_families

ANSWER_S = 600
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


async def scrape(path: Path) -> Samples:
    """By name and labels; no sample may be there twice, and each has its help and type."""
    status, text = await fetch(path, "/metrics")
    assert status == 200
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        assert family.name.startswith("inaproto_"), family
        assert family.documentation, family
        assert family.type in ("counter", "gauge", "histogram"), family
        for sample in family.samples:
            key = sample.name, frozenset(sample.labels.items())
            assert key not in found
            assert sample.name.endswith("_total") == (family.type == "counter"), sample
            found[key] = sample.value
    return found


async def fetch(where: Path | tuple[str, int], path: str, accept: str = "") -> tuple[int, str]:
    """Status and text."""

    def get() -> tuple[int, str]:
        connection = http.client.HTTPConnection("localhost")
        connection.sock = socket.socket(socket.AF_UNIX if isinstance(where, Path) else socket.AF_INET)
        try:
            connection.sock.settimeout(ANSWER_S)
            connection.sock.connect(str(where) if isinstance(where, Path) else where)
            connection.request("GET", path, headers={"accept": accept} if accept else {})
            answer = connection.getresponse()
            if answer.status == 200 and not accept:
                assert answer.getheader("content-type", "").startswith("text/plain; version=")
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    return await trio.to_thread.run_sync(get)


def value(found: Samples, name: str, **labels: str) -> float:
    return found[f"inaproto_{name}", frozenset(labels.items())]


def labelled(found: Samples, name: str, label: str) -> Mapping[str, float]:
    """By the value of the only label."""
    return {
        dict(labels)[label]: number
        for (sample, labels), number in found.items()
        if sample == f"inaproto_{name}"
    }
