"""What SHARP does at a site, measured by all ranks together into one record.

Only such a record, of real switches, backs a statement about hardware. It has what was loaded, whether the
headers fit it, what the switches say of themselves, how long a job takes to come and go, whether sums are
right, how long they take, and on request what two jobs on one tree do to each other.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import secrets
import statistics
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import ml_dtypes
import numpy as np

from inaproto.core.collective.events import Call, SessionConfig
from inaproto.errors import ConfigError, FabricError, LocalMisuse, Unsupported
from inaproto.wire.ina_header import Dtype, Op
from inaproto_adapters.sharp import abi
from inaproto_adapters.sharp.attachment import SharpAttachment
from inaproto_adapters.sharp.config import DTYPE_NUMBERS, SharpConfig
from inaproto_adapters.sharp.hub import HubMember
from inaproto_adapters.sharp.layout import CONSTANTS, STRUCTS, attribute
from inaproto_adapters.sharp.library import SharpLibrary, file_of
from inaproto_adapters.sharp.memory import page_aligned

VERSION: Final = 1
CYCLES: Final = 5
SIZES: Final = tuple(8 << shift for shift in range(0, 27, 2))
"""8 B to 512 MiB."""
ANSWER_BYTES: Final = 4096
MODES: Final = {"low-latency tree": 1, "streaming tree": 2}
_SECONDS_A_SIZE: Final = 1.0
_TIMES: Final = (3, 200)
"""Fewest and most all-reduces of a size."""
_NUMPY: Final[dict[Dtype, Any]] = {
    Dtype.F32: np.float32,
    Dtype.I32: np.int32,
    Dtype.F16: np.float16,
    Dtype.BF16: ml_dtypes.bfloat16,
    Dtype.F64: np.float64,
    Dtype.I64: np.int64,
}


@dataclass(frozen=True, slots=True)
class ProbeWish:
    """What is to be tried."""

    devices: str = ""
    include: Path | None = None
    cycles: int = CYCLES
    size_max: int = SIZES[-1]
    locks: bool = False
    tries_max: int = 20


class Probe:
    """The ranks of one job; each calls the same, in the same order."""

    def __init__(self, library: SharpLibrary, wish: ProbeWish, others: HubMember) -> None:
        self._library, self._wish, self._others = library, wish, others
        session = SessionConfig(tries_max=wish.tries_max, jitters=(100 * (others.position % 8),))
        self._config = SharpConfig(devices=wish.devices, session=session)

    async def run(self) -> dict[str, Any]:
        """The record at rank 0, with every rank's part; an empty one at the others.

        Raises ``FabricError`` where the ranks do not reach each other.
        """
        own: dict[str, Any] = {"rank": self._others.position, "host": platform.node()}
        own["library"] = _library(self._library, self._wish.include)
        own["environment"] = {name: text for name, text in os.environ.items() if name[:11] == "SHARP_COLL_"}
        own["print_config"] = _printed(self._library)
        own["cycles"] = []
        for _ in range(self._wish.cycles):
            own["cycles"].append(await self._cycle(own))
        if "caps" in own:
            own["answers"] = await self._answers()
            own["latency"] = {name: await self._latency(mode) for name, mode in MODES.items()}
            if self._wish.locks:
                own["locks"] = await self._locks()
        told = await self._others.all_gather(json.dumps(own).encode())
        if self._others.position:
            return {}
        return {
            "version": VERSION,
            "claim": "what this record says, of these hosts and this library, and no more",
            "ranks": [json.loads(each) for each in told],
        }

    async def _attach(self, config: SharpConfig) -> SharpAttachment:
        return await SharpAttachment.attached(self._library, config, "probe", self._others, secrets.randbits)

    async def _cycle(self, own: dict[str, Any]) -> dict[str, Any]:
        """A job comes and goes; the first tells what the switches do."""
        try:
            place = await self._attach(self._config)
        except FabricError as error:
            return {"error": str(error)}
        own.setdefault("caps", _caps(place.calls.caps))
        attempts = place.counters["attempts"]
        await place.release()
        return {"attempts": attempts, "ns": {call.value: place.call_ns.get(call) for call in Call}}

    async def _answers(self) -> list[dict[str, Any]]:
        """Sums that are exact in any order: of rank+1, of small numbers."""
        found: list[dict[str, Any]] = []
        for dtype in Dtype:
            config = replace(self._config, bfloat16=dtype is Dtype.BF16)
            row: dict[str, Any] = {"dtype": dtype.name, "number": DTYPE_NUMBERS[dtype]}
            try:
                place = await self._attach(config)
                try:
                    row["wrong"] = await self._answer(place, dtype)
                finally:
                    await place.release()
            except FabricError as error:
                row["error"] = str(error)
            found.append(row)
        return found

    async def _answer(self, place: SharpAttachment, dtype: Dtype) -> int:
        source, into = page_aligned(ANSWER_BYTES), page_aligned(ANSWER_BYTES)
        kind = np.dtype(_NUMPY[dtype])
        values = np.frombuffer(source, kind)
        numbers = np.arange(values.size) % 5
        values[:] = (numbers + self._others.position + 1).astype(kind)
        keys = await place.register(source), await place.register(into)
        await place.all_reduce(*keys, ANSWER_BYTES, dtype, Op.SUM)
        size = self._others.size
        expected = (numbers * size + size * (size + 1) // 2).astype(kind)
        return int(np.count_nonzero(np.frombuffer(into, kind) != expected))

    async def _latency(self, mode: int) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        try:
            place = await self._attach(replace(self._config, aggregation=mode))
        except FabricError as error:
            return [{"error": str(error)}]
        try:
            for nbytes in SIZES[: sum(size <= self._wish.size_max for size in SIZES)]:
                row = await self._timed(place, nbytes)
                rows.append({"bytes": nbytes, **row})
        except FabricError as error:
            rows.append({"error": str(error)})
        finally:
            await place.release()
        return rows

    async def _timed(self, place: SharpAttachment, nbytes: int) -> dict[str, Any]:
        memory = page_aligned(nbytes)
        key = await place.register(memory)
        times = _TIMES[0]
        first = await self._times(place, key, nbytes, times)
        told = await self._others.all_gather(str(statistics.median(first)).encode())
        slowest_s = max(float(each) for each in told) / 1e9
        times = min(max(int(_SECONDS_A_SIZE / slowest_s), _TIMES[0]), _TIMES[1])
        ns = await self._times(place, key, nbytes, times)
        await place.unregister(key)
        return {"times": times, "ns_median": statistics.median(ns), "ns_min": min(ns), "ns_max": max(ns)}

    async def _times(self, place: SharpAttachment, key: int, nbytes: int, times: int) -> list[int]:
        found = []
        for _ in range(times):
            began = time.perf_counter_ns()
            await place.all_reduce(key, key, nbytes, Dtype.F32, Op.SUM)
            found.append(time.perf_counter_ns() - began)
        return found

    async def _locks(self) -> dict[str, Any]:
        """A second job of the same devices, beside one that holds its tree."""
        streaming = replace(self._config, aggregation=2, session=replace(self._config.session, tries_max=1))
        try:
            first = await self._attach(streaming)
        except FabricError as error:
            return {"error": str(error)}
        try:
            return {"second": await self._second(streaming)}
        finally:
            await first.release()

    async def _second(self, config: SharpConfig) -> str:
        try:
            second = await self._attach(config)
        except FabricError as error:
            return str(error)
        try:
            await self._timed(second, 1 << 20)
        except FabricError as error:
            return f"attached; {error}"
        finally:
            await second.release()
        return "attached, and summed 1 MiB"


def _library(library: SharpLibrary, include: Path | None) -> dict[str, Any]:
    file = file_of(library)
    found: dict[str, Any] = {"path": str(file or library.path)}
    if file is not None:
        found["sha256"] = abi.hash_of(file)
        found["abi_check_recorded"] = abi.has_passed(file)
    if include is not None:
        try:
            found["abi_check"] = abi.check(include).record()
        except (ConfigError, Unsupported) as error:
            found["abi_check"] = {"error": str(error)}
    return found


def _caps(caps: Any) -> Mapping[str, int]:
    struct = next(struct for struct in STRUCTS if struct.name == "sharp_coll_caps")
    fields = [field for field in struct.fields if field.count == 1]
    return {field.path: int(getattr(caps, attribute(field.path))) for field in fields}


def _printed(library: SharpLibrary) -> str:
    """What the library prints of its configuration, by a C stream."""
    libc = ctypes.CDLL(None)
    libc.fopen.restype = ctypes.c_void_p
    libc.fopen.argtypes = [ctypes.c_char_p, ctypes.c_char_p]
    libc.fclose.argtypes = [ctypes.c_void_p]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config"
        stream = libc.fopen(str(path).encode(), b"w")
        if not stream:
            return ""
        try:
            print_config = library.function("print_config")
            flags = CONSTANTS["SHARP_COLL_CONFIG_PRINT_CONFIG"] | CONSTANTS["SHARP_COLL_CONFIG_PRINT_HIDDEN"]
            print_config(stream, flags, b"inaproto")
        except Unsupported as error:
            return str(error)
        finally:
            libc.fclose(stream)
        return path.read_text(errors="replace")


def require_sane(wish: ProbeWish) -> None:
    """Raises ``LocalMisuse`` for what cannot be tried."""
    if wish.cycles < 1 or wish.size_max < SIZES[0]:
        raise LocalMisuse(f"at least one cycle, and sizes from {SIZES[0]} bytes")
