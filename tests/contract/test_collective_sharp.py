"""SHARP's adapter over the double of its library, as every ``Collective``, in tasks of one process."""

from __future__ import annotations

import pytest

from inaproto.core.collective.events import SessionConfig
from inaproto.ports import Collective
from inaproto.units import MS
from inaproto_adapters.sharp import SharpCollective, SharpConfig
from tests.contract.collective_contract import CollectiveContract
from tests.sharp_double import Double


class TestSharpOverItsDouble(CollectiveContract):
    @pytest.fixture(autouse=True)
    def _double(self, sharp_double: Double) -> None:
        self._sharp = sharp_double

    def collectives(self, hosts: int) -> list[Collective]:
        session = SessionConfig(tries_max=1, drain_ns=100 * MS)
        config = SharpConfig(library=str(self._sharp.path), session=session)
        return [SharpCollective(self._sharp.library, config) for _ in range(hosts)]
