"""The models file: places, shards and trees that come from it, and what is wrong with a bad one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from inaproto.daemon.models.core_configs import node_config, root_config
from inaproto.daemon.settings.models_file import Models, Tcp, load_models, models_of
from inaproto.errors import ConfigError
from inaproto.units import MS
from inaproto.wire.messages.clocks import WorkerId
from inaproto.wire.messages.models import NodeId
from tests.clusters.models import models_document, models_text


def models(hosts: int = 4, servers: int = 2, **fields: Any) -> Models:
    return models_of(models_document(hosts, servers, **{"elements": 10, **fields}), Path("/run"))


def refused(text: str, hosts: int = 3, servers: int = 1, **fields: Any) -> None:
    with pytest.raises(ConfigError, match=text):
        models(hosts, servers, **fields)


def test_nodes_are_the_hosts_of_workers_then_the_servers() -> None:
    (model,) = models(4, 2, workers=["h2", "h0"]).models
    assert (model.workers, model.servers) == (("h2", "h0"), ("ps0", "ps1"))
    assert (model.worker("h2"), model.worker("h0"), model.worker("h1")) == (WorkerId(0), WorkerId(1), None)
    assert [model.process_of(NodeId(number)) for number in range(4)] == ["h2", "h0", "ps0", "ps1"]
    assert model.node_of("ps1") == NodeId(3)


@pytest.mark.parametrize(("elements", "servers"), [(10, 3), (3, 3), (1000, 7), (1, 1)])
def test_a_model_is_cut_into_parts_of_equal_size_or_one_less(elements: int, servers: int) -> None:
    (model,) = models(1, servers, elements=elements).models
    sizes = [shard.elements for shard in model.shards]
    assert sum(sizes) == elements
    assert max(sizes) - min(sizes) <= 1
    assert [shard.first for shard in model.shards] == [sum(sizes[:number]) for number in range(servers)]
    assert model.shards[0].nbytes == 4 * sizes[0]


def test_each_server_has_a_tree_of_its_own_unless_they_share_one() -> None:
    (model,) = models(16, 2).models
    orders = [shard.tree.nodes[1:] for shard in model.shards]
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(16))
    assert all(shard.tree.in_degree_max == 2 for shard in model.shards)
    (shared,) = models(16, 2, shared=True).models
    assert len({shard.tree.nodes[1:] for shard in shared.shards}) == 1
    assert models(16, 2).models[0].shards[0].tree == model.shards[0].tree
    assert models(16, 2, seed=2).models[0].shards[0].tree != model.shards[0].tree


def test_trees_of_racks_and_none_at_all() -> None:
    (model,) = models(4, 1, tree="rack", racks=[["h0", "h1"], ["h2", "h3"]]).models
    tree = model.shards[0].tree
    assert (tree.height(), len(tree.children(tree.root))) == (2, 2)
    (direct,) = models(4, 1, tree="direct").models
    assert direct.shards[0].tree.height() == 1


def test_what_the_cores_are_told() -> None:
    (model,) = models(4, 1, in_degree=1, staleness=3, heartbeat_ms=200, removal_ms=9000).models
    shard = model.shards[0]
    top, second = shard.tree.nodes[1:3]
    config = node_config(shard, model.process_of(second))
    assert (config.ancestors, config.worker) == ((top, NodeId(4)), WorkerId(second))
    assert config.children == (shard.tree.nodes[3],)
    assert (config.shard.staleness, config.shard.ahead_max) == (3, 11)
    assert (config.patience.heartbeat_ns, config.patience.dead_ns) == (200 * MS, 600 * MS)
    root = root_config(shard)
    assert (root.node, root.children, root.removal_ns) == (NodeId(4), (top,), 9000 * MS)
    assert root.workers == (0, 1, 2, 3)


def test_the_digest_is_that_of_all_that_matters() -> None:
    assert models().digest == models().digest
    assert len({models().digest, models(staleness=1).digest, models(5).digest}) == 3


def test_addresses() -> None:
    document = models_document(2, 1, elements=10)
    document["hosts"][0]["address"] = "tcp://127.0.0.1:7500"
    document["hosts"][1]["address"] = "tls://10.0.0.2:7500"
    found = models_of(document, Path("/run"))
    assert found.processes["h0"] == Tcp("127.0.0.1", 7500, is_tls=False)
    assert found.processes["h1"] == Tcp("10.0.0.2", 7500, is_tls=True)
    assert found.processes["ps0"] == Path("/run/ps0.tree")
    assert str(found.processes["h1"]) == "tls://10.0.0.2:7500"


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("tcp://10.0.0.1:7500", "tcp:// is for loopback alone"),
        ("10.0.0.1:7500", "must be tls://HOST:PORT"),
        ("tcp://127.0.0.1:0", "must name a port"),
        ("unix:" + "x" * 200, "bytes long, UNIX sockets allow"),
        (5, "must be text"),
    ],
)
def test_addresses_that_are_refused(address: object, why: str) -> None:
    document = models_document(1, 1, elements=10)
    document["hosts"][0]["address"] = address
    with pytest.raises(ConfigError, match=rf"hosts\.0\.address.*{why}"):
        models_of(document, Path("/run"))


def test_what_is_wrong_is_named() -> None:
    refused(r"models\.0\.dtype: 'float16' is not allowed", dtype="float16")
    refused(r"models\.0\.elements", elements=0)
    refused(r"models\.m\.fraction_bits: are for a dtype of integers", fraction_bits=3)
    refused(r"models\.0\.colour: no such field", colour="blue")
    refused(r"models\.m\.workers: 'h9' is none of h0, h1, h2", workers=["h9"])
    refused(r"models\.m\.workers: 'h0' is in it twice", workers=["h0", "h0"])
    refused(r"models\.m\.elements: fewer than its 4 servers", servers=4, elements=3)
    refused(r"models\.m\.racks: are given with tree = \"rack\"", racks=[["h0"]])
    refused(r"models\.m\.racks: are given with tree = \"rack\"", tree="rack")
    refused(r"models\.m\.racks: must have each of h0, h1, h2 once", tree="rack", racks=[["h0", "h1"]])


def test_each_fault_has_one_line() -> None:
    for fields in ({"dtype": "float16"}, {"elements": 0}, {"racks": ["h0"]}, {}):
        document = models_document(1, 1, **{"elements": 10, **fields})
        if not fields:
            del document["models"][0]["elements"]
        with pytest.raises(ConfigError) as caught:
            models_of(document, Path("/run"))
        assert "\n" not in str(caught.value)
    document = models_document(1, 1, elements=10)
    document["hosts"] = []
    with pytest.raises(ConfigError, match=r"hosts: \[\] is not allowed: it should have at least 1 item"):
        models_of(document, Path("/run"))
    document["hosts"] = "h0"
    with pytest.raises(ConfigError, match="hosts: 'h0' is not allowed: it should be a list"):
        models_of(document, Path("/run"))
    refused(r"models\.m\.ahead_max: 3 is not more than the staleness, 3", staleness=3, ahead_max=3)


def test_what_no_machine_can_hold_is_refused_before_it_is_made() -> None:
    found = models(2, 2, elements=10**12)
    why = r"would hold more than the .* GiB of memory of this machine: m {} GiB; give the model more servers"
    with pytest.raises(ConfigError, match="models: ps0 " + why.format(1863)):
        found.require_memory("ps0")
    with pytest.raises(ConfigError, match="models: h1 " + why.format(3725)):
        found.require_memory("h1")
    models(2, 2).require_memory("ps0")


def test_names_and_addresses_are_those_of_one_process() -> None:
    document = models_document(2, 1, elements=10)
    document["servers"][0]["name"] = "h1"
    with pytest.raises(ConfigError, match="h1: two hosts or servers have this name"):
        models_of(document, Path("/run"))
    document = models_document(2, 1, elements=10)
    document["servers"][0]["address"] = document["hosts"][0]["address"]
    with pytest.raises(ConfigError, match=r"ps0\.address: .* is another one's, too"):
        models_of(document, Path("/run"))
    document = models_document(2, 1, elements=10)
    document["models"] *= 2
    with pytest.raises(ConfigError, match="m: two models have this name"):
        models_of(document, Path("/run"))


def test_a_file_is_read_and_refusals_name_it(tmp_path: Path) -> None:
    file = tmp_path / "models.toml"
    file.write_text(models_text(2, 1, elements=10))
    assert load_models(file).processes["h0"] == tmp_path / "h0.tree"
    for data, why in (
        (b"\xff", "is not UTF-8 text"),
        (b"[[", "is not TOML"),
        (b"", r"hosts: is missing"),
        (b"#" * (1 << 20) + b"#", "is longer than"),
    ):
        file.write_bytes(data)
        with pytest.raises(ConfigError, match=rf"^models file {file}: {why}"):
            load_models(file)
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load_models(tmp_path / "none.toml")
