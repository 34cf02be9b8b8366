"""The fabric file: what it says, and words for each way in which it can be wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from inaproto.core.rendezvous.fabric_tree import FabricSwitch, LinkUp
from inaproto.daemon.settings.config import load_host_settings, load_switch_settings
from inaproto.daemon.settings.fabric_file import load_fabric, place_in
from inaproto.errors import ConfigError
from inaproto.units import PortId

SPINE = '[[switches]]\nname = "spine"\ndir = "/run/spine"\n'
LEAF0 = '[[switches]]\nname = "leaf0"\ndir = "leaf0"\nabove = "spine"\n'
LEAF1 = '[[switches]]\nname = "leaf1"\ndir = "leaf1"\nabove = "spine"\naggregates = false\ntrunk = "t.sock"\n'


def write(directory: Path, text: str) -> Path:
    path = directory / "fabric.toml"
    path.write_text(text)
    return path


def test_directories_trunks_ports_and_addresses(runtime_dir: Path) -> None:
    deep = '[[switches]]\nname = "deep"\ndir = "deep"\nabove = "leaf0"\n'
    fabric = load_fabric(write(runtime_dir, SPINE + LEAF0 + LEAF1 + deep))
    assert [entry.dir for entry in fabric.entries] == [
        Path("/run/spine"),
        *(runtime_dir / name for name in ("leaf0", "leaf1", "deep")),
    ]
    assert [entry.trunk for entry in fabric.entries] == [
        None,
        Path("/run/spine/trunk-leaf0.sock"),
        runtime_dir / "t.sock",
        runtime_dir / "leaf0/trunk-deep.sock",
    ]
    assert fabric.trunk_ports("spine") == {"leaf0": 1, "leaf1": 2}
    assert fabric.trunk_ports("leaf0") == {"spine": 1, "deep": 2}
    assert fabric.trunk_ports("deep") == {"leaf0": 1}
    leaf1 = fabric.tree_config().switches[2]
    assert leaf1 == FabricSwitch(
        "leaf1", fabric.address("leaf1"), "spine", port_up=PortId(1), port_down=PortId(2), aggregates=False
    )
    assert [fabric.address(entry.name).ip for entry in fabric.entries] == [
        bytes([169, 254, 1, number]) for number in (1, 2, 3, 4)
    ]
    assert len({fabric.address(entry.name).mac for entry in fabric.entries}) == 4


def test_the_example_is_a_fabric() -> None:
    fabric = load_fabric(Path(__file__).resolve().parents[2] / "deploy" / "fabric.toml")
    assert list(fabric.by_name) == ["spine", "leaf0", "leaf1"]
    assert fabric.by_name["leaf1"].trunk == Path("/run/inaproto/trunk-leaf1.sock")


def test_the_digest_is_of_what_switches_must_agree_on(runtime_dir: Path) -> None:
    digest = load_fabric(write(runtime_dir, SPINE + LEAF0 + LEAF1)).digest
    assert load_fabric(write(runtime_dir, SPINE + LEAF0 + LEAF1.replace("t.sock", "u.sock"))).digest == digest
    assert load_fabric(write(runtime_dir, SPINE + LEAF1 + LEAF0)).digest != digest
    assert load_fabric(write(runtime_dir, SPINE + LEAF0 + LEAF1.replace("false", "true"))).digest != digest


def test_digests_of_fabrics_without_further_links_are_what_they_were(runtime_dir: Path) -> None:
    """So that daemons may be renewed one after the other."""
    known = "155b15becb308a4aca311c21a998bfc5"
    assert load_fabric(write(runtime_dir, SPINE + LEAF0 + LEAF1)).digest == known
    listed = LEAF0.replace('"spine"', '["spine"]')
    assert load_fabric(write(runtime_dir, SPINE + listed + LEAF1)).digest == known


SPINE1 = '[[switches]]\nname = "spine1"\ndir = "/run/spine1"\n'
BOTH = '["spine", "spine1"]'
TWO_ROOTS = SPINE + SPINE1 + LEAF0.replace('"spine"', BOTH) + LEAF1.replace('"spine"', BOTH)


def test_further_links_up(runtime_dir: Path) -> None:
    fabric = load_fabric(write(runtime_dir, TWO_ROOTS))
    assert [(entry.name, entry.above, entry.further) for entry in fabric.entries] == [
        ("spine", None, ()),
        ("spine1", None, ()),
        ("leaf0", "spine", ("spine1",)),
        ("leaf1", "spine", ("spine1",)),
    ]
    assert [link.trunk for link in fabric.by_name["leaf0"].uplinks] == [
        Path("/run/spine/trunk-leaf0.sock"),
        Path("/run/spine1/trunk-leaf0.sock"),
    ]
    assert [link.trunk for link in fabric.by_name["leaf1"].uplinks] == [
        runtime_dir / "t.sock",
        Path("/run/spine1/trunk-leaf1.sock"),
    ]
    roots = [place_in(runtime_dir / "fabric.toml", name) for name in ("spine", "spine1", "leaf0")]
    assert [(place.is_root, place.is_further_root) for place in roots] == [
        (True, False),
        (False, True),
        (False, False),
    ]
    assert roots[1].trunk_paths() == {
        "leaf0": Path("/run/spine1/trunk-leaf0.sock"),
        "leaf1": Path("/run/spine1/trunk-leaf1.sock"),
    }
    listed = TWO_ROOTS.replace('trunk = "t.sock"', 'trunk = ["t.sock", "u.sock"]')
    uplinks = load_fabric(write(runtime_dir, listed)).by_name["leaf1"].uplinks
    assert [link.trunk for link in uplinks] == [runtime_dir / "t.sock", runtime_dir / "u.sock"]


def test_ports_of_further_links_come_after_those_of_the_own_tree(runtime_dir: Path) -> None:
    """So the numbers of the others are what they are without them."""
    deep = '[[switches]]\nname = "deep"\ndir = "deep"\nabove = ["leaf0", "leaf1", "spine1"]\n'
    fabric = load_fabric(write(runtime_dir, TWO_ROOTS + deep))
    assert fabric.trunk_ports("spine") == {"leaf0": 1, "leaf1": 2}
    assert fabric.trunk_ports("spine1") == {"leaf0": 1, "leaf1": 2, "deep": 3}
    assert fabric.trunk_ports("leaf0") == {"spine": 1, "deep": 2, "spine1": 3}
    assert fabric.trunk_ports("leaf1") == {"spine": 1, "spine1": 2, "deep": 3}
    assert fabric.trunk_ports("deep") == {"leaf0": 1, "leaf1": 2, "spine1": 3}
    assert {entry.name: sorted(fabric.ring_ports(entry.name)) for entry in fabric.entries} == {
        "spine": [],
        "spine1": [1, 2, 3],
        "leaf0": [3],
        "leaf1": [2, 3],
        "deep": [2, 3],
    }
    assert {entry.name: sorted(fabric.ports_up(entry.name)) for entry in fabric.entries} == {
        "spine": [],
        "spine1": [],
        "leaf0": [1, 3],
        "leaf1": [1, 2],
        "deep": [1, 2, 3],
    }
    deep_switch = fabric.tree_config().switches[-1]
    assert (deep_switch.above, deep_switch.port_up, deep_switch.port_down) == ("leaf0", 1, 2)
    assert deep_switch.further == (
        LinkUp("leaf1", PortId(2), PortId(3)),
        LinkUp("spine1", PortId(3), PortId(3)),
    )


def test_the_digest_is_also_of_further_links(runtime_dir: Path) -> None:
    digest = load_fabric(write(runtime_dir, TWO_ROOTS)).digest
    fewer = TWO_ROOTS.replace(BOTH, '"spine"', 1)
    assert load_fabric(write(runtime_dir, fewer)).digest != digest
    moved = TWO_ROOTS.replace('trunk = "t.sock"', 'trunk = ["t.sock", "u.sock"]')
    assert load_fabric(write(runtime_dir, moved)).digest == digest


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            TWO_ROOTS.replace(BOTH, '["spine1", "spine"]'),
            "leaf0.above: spine1 has none above it, so it is a further",
        ),
        (TWO_ROOTS.replace(BOTH, '["spine", "spine"]'), "leaf0.above: 'spine' is in it twice"),
        (TWO_ROOTS.replace(BOTH, '["spine", "spine2"]'), "leaf0.above: 'spine2' is no switch of this file"),
        (TWO_ROOTS.replace(BOTH, '["spine", "leaf1"]', 1), "'leaf1' stands after it; move it before"),
        (TWO_ROOTS.replace(BOTH, "[]", 1), "above: [] is not allowed: leave it out, or name a switch"),
        (TWO_ROOTS.replace(BOTH, "[7]", 1), "above.0: 7 is not allowed"),
        (
            SPINE + SPINE1 + LEAF0,
            "spine1.above: is missing; only spine, the first and so the root, has none, and f",
        ),
        (
            SPINE + SPINE1 + LEAF0.replace('"spine"', '"spine1"'),
            "a further root, to which no ordinary traffic goes",
        ),
        (
            TWO_ROOTS.replace(SPINE1, SPINE1 + "aggregates = false\n"),
            "spine1.aggregates: a further root must",
        ),
        (TWO_ROOTS.replace(SPINE1, SPINE1 + 'trunk = "x"\n'), "spine1.trunk: a further root dials nobody"),
        (TWO_ROOTS.replace('"t.sock"', '["t", "u", "v"]'), "leaf1.trunk: 3 paths, for 2 switches above"),
        (TWO_ROOTS.replace("/run/spine1", "/" + "x" * 120), "UNIX sockets allow"),
    ],
)
def test_words_for_further_links_that_are_wrong(runtime_dir: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_fabric(write(runtime_dir, text))
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no switch in it; it has one table [[switches]] for each switch"),
        ("[switches]\n", "no switch in it"),
        ("[[switch]]\n", "unknown table or field 'switch'"),
        ("x = [", "is not TOML"),
        (LEAF0, "leaf0.above: the first switch is the root, which has none above it"),
        (SPINE + LEAF0.replace('above = "spine"', ""), "leaf0.above: is missing; only spine, the first"),
        (SPINE + LEAF0.replace('"spine"', '"top"'), "leaf0.above: 'top' is no switch of this file"),
        (SPINE + LEAF0.replace('"spine"', '"leaf1"') + LEAF1, "'leaf1' stands after it; move it before"),
        (SPINE + LEAF0.replace('"spine"', '"leaf0"'), "leaf0.above: 'leaf0' stands after it"),
        (SPINE + LEAF0 + LEAF0, "leaf0: two switches have this name"),
        (SPINE + LEAF0 + LEAF1.replace('dir = "leaf1"', 'dir = "leaf0"'), "is that of leaf0, too"),
        (SPINE + "aggregates = false\n", "spine.aggregates: the root must aggregate"),
        (SPINE + 'trunk = "x"\n', "spine.trunk: the root dials nobody"),
        (SPINE + LEAF0 + "colour = 1\n", "switches[1].colour: no such field; fields are name, dir"),
        ('[[switches]]\ndir = "x"\n', "switches[0].name: is missing"),
        (
            SPINE.replace('"spine"', '"a/b"'),
            "switches[0].name: 'a/b' is not allowed: must be 1 to 63 letters",
        ),
        (SPINE + LEAF0 + 'aggregates = "no"\n', "switches[1].aggregates: 'no' is not allowed"),
        (SPINE.replace("/run/spine", "/" + "x" * 120), "UNIX sockets allow"),
    ],
)
def test_words_for_what_is_wrong(runtime_dir: Path, text: str, words: str) -> None:
    file = write(runtime_dir, text)
    with pytest.raises(ConfigError) as caught:
        load_fabric(file)
    assert str(caught.value).startswith(f"fabric file {file}: ")
    assert words in str(caught.value)


def test_a_file_that_cannot_be_read(runtime_dir: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load_fabric(runtime_dir / "none.toml")
    write(runtime_dir, SPINE)
    (runtime_dir / "fabric.toml").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="is not UTF-8"):
        load_fabric(runtime_dir / "fabric.toml")


def test_the_place_of_a_switch(runtime_dir: Path) -> None:
    file = write(runtime_dir, SPINE + LEAF0)
    assert place_in(file, "spine").is_root
    assert not place_in(file, "leaf0").is_root
    with pytest.raises(ConfigError, match=r"has no switch 'leaf7'; --name must be one of spine, leaf0"):
        place_in(file, "leaf7")
    with pytest.raises(ConfigError, match="not which of its switches this one is"):
        place_in(file, "")


def test_settings_take_the_directory_from_the_fabric(runtime_dir: Path) -> None:
    file = write(runtime_dir, SPINE + LEAF0)
    loaded = load_switch_settings({"fabric": str(file), "name": "leaf0"}, None, {})
    assert loaded.settings.dir == runtime_dir / "leaf0"
    assert f"# {file}: leaf0.dir" in loaded.show()
    same = {"fabric": str(file), "name": "leaf0", "dir": str(runtime_dir / "leaf0")}
    assert load_switch_settings(same, None, {}).settings.dir == runtime_dir / "leaf0"
    with pytest.raises(
        ConfigError, match=r"dir \(flag --dir\): is /tmp/x, but .* says .*leaf0; leave it out"
    ):
        load_switch_settings(same | {"dir": "/tmp/x"}, None, {})
    with pytest.raises(
        ConfigError, match=r"name .*is for a switch of a fabric .*give --fabric, --controller or "
    ):
        load_switch_settings({"name": "leaf0"}, None, {})
    known = {"name": "spine", "control_listen": "127.0.0.1:0"}
    assert load_switch_settings(known, None, {}).settings.name == "spine", "which hosts call tls://spine@..."
    assert load_switch_settings({}, None, {"INAPROTO_NAME": "h0"}).settings.fabric is None


def test_a_host_may_not_listen_where_a_trunk_is() -> None:
    flags = {"name": "trunk-leaf0", "ip": "10.0.0.1", "dir": "/tmp/ina", "switch": "leaf0"}
    with pytest.raises(ConfigError, match="is the switch's own socket"):
        load_host_settings(flags, None, {})
    assert load_host_settings(flags | {"name": "h0"}, None, {}).settings.switch == "leaf0"
