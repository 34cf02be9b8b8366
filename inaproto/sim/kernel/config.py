"""What a run depends on, as a record that a log's header holds; and what all worlds of words have in it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, ClassVar, Final, Self, TypeVar

from pydantic import TypeAdapter, ValidationError

from inaproto.errors import ConfigError
from inaproto.faults.weather import Weather
from inaproto.units import MS, US, S

CLEAR: Final = Weather()


class Recorded:
    """A configuration: a frozen dataclass whose fields JSON can hold."""

    __slots__ = ()
    called: ClassVar[str] = "world"
    """Its world, as errors name it."""

    def as_record(self) -> dict[str, Any]:
        """JSON-ready; :meth:`from_record` gives the same configuration back."""
        record: dict[str, Any] = _adapter_of(type(self)).dump_python(self, mode="json")
        return record

    @classmethod
    def from_record(cls, record: Any) -> Self:
        """Raises ``ConfigError`` that names the field."""
        try:
            found: Self = _adapter_of(cls).validate_python(record, strict=False)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise ConfigError(f"{cls.called}: {where}: {first['msg']}") from None
        return found


_ADAPTERS: Final[dict[type[Recorded], TypeAdapter[Any]]] = {}


def _adapter_of(kind: type[Recorded]) -> TypeAdapter[Any]:
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]


@dataclass(frozen=True, slots=True)
class TimedFault:
    """Something that befalls a part of a world of words, and ends ``duration_ns`` later."""

    at_ns: int
    kind: StrEnum
    target: int = 0
    duration_ns: int = 0
    weather: Weather = CLEAR
    moment: str = ""
    """Not empty: it strikes ``at_ns`` after this mark was set, if that is during the weather; one that would
    outlast the weather is cut short."""
    occurrence: int = 1
    """Set for which time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WordsConfig(Recorded):
    """What all worlds of words are described by."""

    seed: str
    faults: tuple[Any, ...] = ()
    weather: Weather = CLEAR
    delay_min_ns: int = 20 * US
    """Delay of a message on its way, without weather."""
    delay_max_ns: int = 100 * US
    fsync_max_ns: int = 2 * MS
    weather_until_ns: int = S
    heal_ns: int = 10 * S
    events_max: int = 200_000
    sample_events: int = 32
    """After so many events checkers look at all that is."""

    def __post_init__(self) -> None:
        for fault in self.faults:
            if min(fault.at_ns, fault.duration_ns, fault.occurrence - 1) < 0:
                raise ConfigError(f"{self.called}: {fault}: a time below 0, or no occurrence")


Config = TypeVar("Config", bound=WordsConfig)


def one_less(config: Config, many: str) -> Iterator[Config]:
    """Configurations without one of ``many``, which names a tuple of a configuration."""
    items = getattr(config, many)
    for number in range(len(items)):
        changes: dict[str, Any] = {many: items[:number] + items[number + 1 :]}
        yield replace(config, **changes)
