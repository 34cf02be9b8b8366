"""Where metrics are told, and that no label grows without bound."""

from __future__ import annotations

from pathlib import Path

import pytest

from inaproto.daemon.net.metrics_address import TcpAddress, parse_metrics
from inaproto.daemon.observe.metric_families import LABELS_MAX, OTHERS, Families, count_by, few


@pytest.mark.parametrize(
    ("value", "address"),
    [
        ("127.0.0.1:9464", TcpAddress("127.0.0.1", 9464)),
        ("0.0.0.0:0", TcpAddress("0.0.0.0", 0)),
        ("[::1]:9464", TcpAddress("::1", 9464)),
        ("/run/inaproto/h0.metrics", Path("/run/inaproto/h0.metrics")),
    ],
)
def test_addresses_and_sockets(value: str, address: TcpAddress | Path) -> None:
    assert parse_metrics(value) == address
    assert str(address) == value


@pytest.mark.parametrize(
    "value", ["9464", ":9464", "localhost:9464", "10.0.0.1", "10.0.0.1:65536", "10.0.0.1:٣", "h0.metrics"]
)
def test_what_is_neither_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match=r"such as 127\.0\.0\.1:9464, or the path of a socket"):
        parse_metrics(value)


def test_a_socket_is_not_one_that_status_would_ask() -> None:
    with pytest.raises(ValueError, match=r"does not end in \.sock"):
        parse_metrics("/run/inaproto/h0.sock")


def test_a_label_has_a_bounded_number_of_values_and_nothing_is_lost() -> None:
    counts = {f"rule {number}": float(number) for number in range(3 * LABELS_MAX)}
    found = few(counts)
    assert len(found) == LABELS_MAX + 1
    assert sum(found.values()) == sum(counts.values())
    assert few({"a": 1}) == {"a": 1}
    families = Families()
    families.counters("x", "What.", "rule", counts)
    (family,) = families.made
    assert len(family.samples) == LABELS_MAX + 1
    assert count_by(["a", "b", "z", "a"], ("a", "b", "c")) == {"a": 2, "b": 1, "c": 0, OTHERS: 1}
