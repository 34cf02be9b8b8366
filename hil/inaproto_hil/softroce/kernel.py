"""The kernel of the guest, out of the distribution's package, which is downloaded and not installed.

QEMU boots the ELF image by its PVH entry, and so leaves out decompression, which takes half of the boot
under emulation; so it is taken out of the bzImage here.
"""

from __future__ import annotations

import gzip
import io
import lzma
import re
import struct
import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from inaproto.errors import ConfigError, Unsupported
from inaproto_hil.softroce.modules import module_name, uncompressed
from inaproto_hil.softroce.packages import program

_META_PACKAGE: Final = "linux-image-amd64"
_DEPENDS: Final = re.compile(r"Depends:\s+(linux-image-\S+)")
APT_S_MAX: Final = 300.0
_SETUP_SECTS, _PAYLOAD = 0x1F1, 0x248
"""Offsets in a bzImage: sectors of its setup less one, and where its payload lies (Linux boot protocol)."""
_SECTOR: Final = 512


@dataclass(frozen=True, slots=True)
class KernelPackage:
    """As the distribution offers it now."""

    name: str
    version: str


def offered() -> KernelPackage:
    """Raises ``Unsupported`` where the package lists know no kernel."""
    text = _said("apt-cache", "depends", _META_PACKAGE)
    found = _DEPENDS.search(text)
    if found is None:
        raise Unsupported("the Soft-RoCE bench", f"apt knows no {_META_PACKAGE}; run apt-get update")
    name = found.group(1)
    shown = _said("apt-cache", "show", "--no-all-versions", name)
    version = next((line.split()[1] for line in shown.splitlines() if line.startswith("Version:")), "")
    return KernelPackage(name, version)


def download(package: KernelPackage, folder: Path) -> Path:
    """The package's file. Needs no privilege. Raises ``Unsupported``."""
    before = set(folder.glob("*.deb"))
    done = subprocess.run(
        [program("apt-get"), "download", "-qq", f"{package.name}={package.version}"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=APT_S_MAX,
        check=False,
    )
    new = sorted(set(folder.glob("*.deb")) - before)
    if done.returncode or not new:
        said = (done.stderr.strip().splitlines() or ["no file came"])[-1]
        raise Unsupported("the Soft-RoCE bench", f"apt-get download {package.name}: {said}")
    return new[0]


@dataclass(slots=True)
class KernelFiles:
    vmlinux: bytes
    modules: dict[str, bytes]
    """Uncompressed, by name."""


def unpack(package: Path) -> KernelFiles:
    """What the guest may need of a package. Raises ``ConfigError`` for one of another make."""
    image: bytes | None = None
    modules: dict[str, bytes] = {}
    for path, data in _files(package):
        if "/boot/vmlinuz-" in path:
            image = data
        elif ".ko" in path:
            modules[module_name(path)] = uncompressed(path, data)
    if image is None or not modules:
        raise ConfigError(f"{package.name} has no kernel image or no modules")
    return KernelFiles(extract_vmlinux(image), modules)


def _files(package: Path) -> Iterator[tuple[str, bytes]]:
    with subprocess.Popen(
        [program("dpkg"), "--fsys-tarfile", str(package)], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        with tarfile.open(fileobj=process.stdout, mode="r|") as archive:
            for member in archive:
                file = archive.extractfile(member) if member.isfile() else None
                if file is not None and ("/boot/" in member.name or ".ko" in member.name):
                    yield member.name, file.read()
        process.stdout.read()  # a pipe that is closed early would fail dpkg
    if process.returncode:
        raise ConfigError(f"dpkg --fsys-tarfile {package.name} ended with {process.returncode}")


def extract_vmlinux(image: bytes) -> bytes:
    """The ELF image in a bzImage. Raises ``ConfigError``."""
    offset, length = struct.unpack_from("<II", image, _PAYLOAD)
    begin = (image[_SETUP_SECTS] + 1) * _SECTOR + offset
    payload = image[begin : begin + length]
    if payload.startswith(b"\xfd7zXZ\0"):
        # Four bytes of length follow the stream, which ``lzma.decompress`` would take for another stream.
        data = lzma.LZMADecompressor().decompress(payload)
    elif payload.startswith(b"\x1f\x8b"):
        with gzip.GzipFile(fileobj=io.BytesIO(payload[:-4])) as file:
            data = file.read()
    else:
        raise ConfigError(f"a kernel image compressed in a way not known here: {payload[:4].hex()}")
    if not data.startswith(b"\x7fELF"):
        raise ConfigError("what is in the kernel image is no ELF file")
    return data


def _said(*command: str) -> str:
    done = subprocess.run(
        [program(command[0]), *command[1:]], capture_output=True, text=True, timeout=APT_S_MAX, check=False
    )
    return done.stdout if done.returncode == 0 else ""
