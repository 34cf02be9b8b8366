"""What the environment wishes of ``inaproto.torch``, and refusals of what it cannot mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from inaproto.errors import ConfigError

TAKEN_VARIABLE: Final = "INAPROTO_TORCH"
"""Backends of torch, with commas between them, whose all-reduces inaproto takes over: ``gloo``, ``nccl``."""
WITHOUT_VARIABLE: Final = "INAPROTO_TORCH_WITHOUT"
"""What becomes of a group that inaproto cannot serve: ``gloo`` carries it, or an ``error`` ends it."""
BACKENDS: Final = ("gloo", "nccl")
LAUNCHED: Final = ("gloo",)
"""Those that a launcher takes over unasked: nobody has measured what NCCL would lose or gain."""
NAME: Final = "inaproto"
"""The backend's name in ``init_process_group``."""


@dataclass(frozen=True, slots=True)
class TorchWishes:
    taken: frozenset[str] = frozenset()
    without: str = ""
    """``gloo`` or ``error``; empty: ``error`` for a group that names inaproto, ``gloo`` for another."""

    def serves(self, backend: str) -> bool:
        """Whether inaproto is to carry all-reduces of a group with this backend."""
        return backend == NAME or backend in self.taken

    def goes_on_without(self, backend: str) -> bool:
        """Whether gloo carries such a group when inaproto cannot."""
        return self.without == "gloo" or (not self.without and backend != NAME)


def torch_wishes(environment: Mapping[str, str]) -> TorchWishes:
    """Raises ``ConfigError``."""
    taken = [part.strip().lower() for part in environment.get(TAKEN_VARIABLE, "").split(",") if part.strip()]
    strange = [part for part in taken if part not in BACKENDS]
    if strange:
        raise ConfigError(
            f"{TAKEN_VARIABLE} names {', '.join(strange)}; it may name {' and '.join(BACKENDS)}, "
            "with a comma between them"
        )
    without = environment.get(WITHOUT_VARIABLE, "").strip().lower()
    if without not in ("", "gloo", "error"):
        raise ConfigError(f"{WITHOUT_VARIABLE} is {without!r}; it may be gloo or error")
    return TorchWishes(frozenset(taken), without)
