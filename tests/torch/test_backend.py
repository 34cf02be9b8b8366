"""inaproto as a backend of torch: under its name, and behind gloo's for scripts that name that."""

from __future__ import annotations

import pytest

from tests.torch.conftest import Ranks

TAKEN = {"INAPROTO_TORCH": "gloo"}


@pytest.mark.parametrize("backend", ["inaproto", "cpu:inaproto", "gloo"])
def test_every_type_and_operation_has_the_bytes_of_additions_in_rank_order(
    one_host: Ranks, backend: str
) -> None:
    for found in one_host.results("every_type_and_operation", 3, TAKEN, backend=backend):
        assert found == ["inaproto"]


@pytest.mark.parametrize("devices", [["cpu", "cuda"], ["cuda", "cpu"], ["cuda", "cuda", "cpu"]], ids=" ".join)
def test_a_maker_knows_its_device_whatever_others_left_in_the_store(
    one_host: Ranks, devices: list[str]
) -> None:
    (found,) = one_host.results("devices_of_makers", 1, devices=devices)
    assert found == [device == "cuda" for device in devices]


def test_without_a_wish_gloo_stays_gloo(one_host: Ranks) -> None:
    assert [found["carriers"] for found in one_host.results("train", 2, backend="gloo")] == [[], []]


@pytest.mark.parametrize("path", ["auto", "chain", "overlay"])
def test_ddp_trains_to_the_weights_of_one_process_on_each_path(
    one_host: Ranks, two_hosts: Ranks, path: str
) -> None:
    for ranks, size in ((one_host, 4), (two_hosts, 2)):
        found = ranks.results("train", size, {**TAKEN, "INAPROTO_PATH": path}, backend="gloo")
        assert {each["weights"] for each in found} == {found[0]["alone"]}
        assert all(each["carriers"] == ["inaproto"] for each in found)


def test_a_version_that_is_too_old_is_refused_and_one_that_is_unknown_is_told(one_host: Ranks) -> None:
    (found,) = one_host.results("another_version", 1, version="2.5.1+cpu")
    assert "this is torch 2.5.1+cpu; it needs torch 2.11 or later" in found
    (rank,) = one_host.run("another_version", 1, version="9.1.0")
    assert rank.result == ""
    assert "torch 9.1.0 is newer than" in rank.output
