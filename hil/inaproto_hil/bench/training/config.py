"""What ``inaproto bench training`` measures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from inaproto_hil.bench.peers.config import BEFORE, GLOO, INAPROTO, host_default
from inaproto_hil.bench.peers.config import Config as LinkConfig
from inaproto_hil.rigs.links import Shape

CONTENDERS: Final = (INAPROTO, GLOO)
"""Who can be asked for; ``before`` is asked for by its Python."""
OURS: Final = (INAPROTO, BEFORE)
"""Those that add up through the switch."""
USUAL_MODELS: Final = ("vgg", "resnet", "transformer")
MODELS: Final = (*USUAL_MODELS, "device")
TRAINING: Final = "training"
COMMUNICATION: Final = "communication"
"""Gradients that cost nothing, and their sums."""
ALONE: Final = "alone"
"""As many processes, each of which trains by itself."""
SCRIPT: Final = Path(__file__).parents[4] / "examples" / "torch" / "train_models.py"


@dataclass(frozen=True, slots=True)
class Config:
    models: tuple[str, ...]
    ranks: tuple[int, ...]
    rates_bps: tuple[int, ...]
    """Of each machine's link, each way."""
    only: tuple[str, ...] = CONTENDERS
    script: str = str(SCRIPT)
    batch: int = 8
    """Samples of a rank in a step."""
    scale: float = 1.0
    """Of the models' widths."""
    bucket_mib: float | None = None
    """Of DDP's buckets. None: torch's default."""
    rounds: int = 5
    turn_s: float = 4.0
    """A turn is over when it has taken so long and has its steps."""
    steps: int = 3
    """Of a turn that count, at least."""
    check: int = 5
    """Steps from one digest of the weights to the next."""
    has_parts: bool = True
    """Computation and communication are measured alone, too."""
    timeout_s: float = 120.0
    """For one step."""
    mtu: int = 1024
    host_options: tuple[str, ...] = ()
    switch_options: tuple[str, ...] = ()
    before: str = ""
    """Python of an environment with another inaproto; empty: none takes part."""

    @property
    def contenders(self) -> tuple[str, ...]:
        return (*self.only, BEFORE) if self.before else self.only

    def links(self, ranks: int, rate_bps: int) -> LinkConfig:
        """The machines of one contender, as :mod:`inaproto_hil.bench.peers` knows them."""
        return LinkConfig(
            hosts=ranks,
            sizes=(),
            only=(),
            link=Shape(rate_bps),
            mtu=self.mtu,
            window=host_default("window_messages"),
            message_packets=host_default("message_packets"),
            transport_timeout=host_default("transport_timeout"),
            host_options=self.host_options,
            switch_options=self.switch_options,
            before=self.before,
        )


def parse_models(text: str) -> tuple[str, ...]:
    """``"vgg,resnet"``."""
    return _some_of(text, MODELS)


def parse_contenders(text: str) -> tuple[str, ...]:
    """``"inaproto,gloo"``."""
    return _some_of(text, CONTENDERS)


def _some_of(text: str, known: tuple[str, ...]) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(text.split(",")))
    if not set(found) <= set(known):
        raise ValueError(f"{text!r}: there are {', '.join(known)}")
    return found
