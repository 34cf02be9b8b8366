"""The guest of the Soft-RoCE bench, as far as it is made without booting it."""

from __future__ import annotations

import gzip
import lzma
import struct

import pytest

from inaproto.errors import ConfigError, Unsupported
from inaproto_hil.softroce import kernel, packages
from inaproto_hil.softroce.modules import depends, load_order, module_name, uncompressed
from inaproto_hil.softroce.network import GuestHost, set_up

ELF = b"\x7fELF" + bytes(5000)


def module(*needs: str) -> bytes:
    return b"\x7fELF\0license=GPL\0depends=" + ",".join(needs).encode() + b"\0name=x\0"


def bz_image(payload: bytes, *, sectors: int = 3) -> bytes:
    """As the Linux boot protocol lays it out: setup, then the payload and its length at 0x248."""
    head = bytearray((sectors + 1) * 512 + 100)
    head[0x1F1] = sectors
    struct.pack_into("<II", head, 0x248, 100, len(payload))
    return bytes(head) + payload + b"rest"


def test_modules_are_loaded_after_what_they_need() -> None:
    modules = {
        "rdma_rxe": module("ib_core", "udp_tunnel"),
        "ib_core": module(),
        "udp_tunnel": module("ib_core"),
        "crc32_generic": module(),
    }
    order = load_order(modules, ["crc32_generic", "rdma_rxe", "built_in"])
    assert order == ["crc32_generic", "ib_core", "udp_tunnel", "rdma_rxe"]


def test_modules_that_lack_or_need_each_other_are_named() -> None:
    with pytest.raises(ConfigError, match="no module gone, which rdma_rxe needs"):
        load_order({"rdma_rxe": module("gone")}, ["rdma_rxe"])
    with pytest.raises(ConfigError, match="a -> b -> a"):
        load_order({"a": module("b"), "b": module("a")}, ["a"])


def test_what_a_module_says_of_itself() -> None:
    assert depends(module("a-b", "c")) == ["a_b", "c"]
    assert depends(module()) == []
    assert depends(b"no section") == []
    assert module_name("./lib/modules/6.1/kernel/crypto/crc32-generic.ko.xz") == "crc32_generic"
    assert uncompressed("a.ko", b"x") == b"x"
    assert uncompressed("a.ko.xz", lzma.compress(b"x")) == b"x"
    assert uncompressed("a.ko.gz", gzip.compress(b"x")) == b"x"
    with pytest.raises(ConfigError, match=r"\.lz4"):
        uncompressed("a.ko.lz4", b"x")


@pytest.mark.parametrize("compress", [lzma.compress, gzip.compress], ids=["xz", "gzip"])
def test_the_kernel_is_taken_out_of_its_image(compress: object) -> None:
    assert callable(compress)
    payload = compress(ELF) + struct.pack("<I", len(ELF))  # the length follows the stream
    assert kernel.extract_vmlinux(bz_image(payload)) == ELF


def test_an_image_of_another_make_is_refused() -> None:
    with pytest.raises(ConfigError, match="compressed in a way not known here: 28b52ffd"):
        kernel.extract_vmlinux(bz_image(b"\x28\xb5\x2f\xfd" + bytes(100)))
    with pytest.raises(ConfigError, match="no ELF file"):
        kernel.extract_vmlinux(bz_image(lzma.compress(b"text" * 100) + bytes(4)))


def test_each_host_has_a_route_of_its_own() -> None:
    text = set_up([GuestHost(1), GuestHost(2)], ethernet_mtu=4200)
    assert text.index("ip rule add pref 100 lookup local") < text.index("ip rule del pref 0")
    for host in (GuestHost(1), GuestHost(2)):
        assert f"ip rule add pref {10 + host.number} from {host.ip} iif lo lookup {100 + host.number}" in text
        # The MTU of the path is read when the device is made.
        own = text[text.index(f"nic {host.mac}") :]
        assert own.index("mtu 4200 up") < own.index(f"rdma link add {host.device}")


def test_hosts_in_a_vlan_have_their_addresses_there_and_their_devices_below() -> None:
    text = set_up([GuestHost(1), GuestHost(2)], ethernet_mtu=1500, vlan=5)
    for number in (1, 2):
        host = GuestHost(number)
        made = text.index(f"ip link add link $D name vlan{number} type vlan id 5")
        begun = text.index(f"D=$(nic {host.mac})")
        there = text.index(f"D=vlan{number}")
        addressed = text.index(f"ip addr add {host.ip}/24 dev $D")
        assert begun < made < there < addressed
        assert f"rdma link add {host.device} type rxe netdev $(nic {host.mac})" in text


def test_what_is_missing_is_one_line_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "_SEARCHED", "/nowhere")
    with pytest.raises(Unsupported, match=r"apt-get install -y --no-install-recommends .*qemu-system-x86"):
        packages.require()
