"""Turns by pairs: nobody uses links that another uses, and who shares none is held back by nobody."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from inaproto_controller.cluster.model import SHARING
from inaproto_controller.cluster.network import FatTreeNetwork
from inaproto_controller.cluster.requests import HISTOGRAMS, draw_requests
from inaproto_controller.cluster.topology import FatTree, Quota
from inaproto_controller.planning.trees.builder import Changes, TreeJob, integers
from inaproto_controller.planning.trees.exclusive import FirstFitP
from inaproto_controller.simulate.cluster import simulate
from inaproto_controller.simulate.presets import make_setting
from inaproto_controller.simulate.results import Operation

_TREE = FatTree((4, 4, 4), (1, 2, 2))


class _Recorded(FirstFitP):
    """Also notes whose trees exclude each other, by number of placement."""

    def __init__(self, network: FatTreeNetwork) -> None:
        super().__init__(network)
        self._its_network = network
        self.excluded: set[tuple[int, int]] = set()

    def build(self, jobs: Sequence[TreeJob], new: Sequence[int], *, now: float, completed: bool) -> Changes:
        found = super().build(jobs, new, now=now, completed=completed)
        trees = [(job, root) for job in jobs if (root := found.get(job.slot, job.tree)) is not None]
        slots = integers([job.slot for job, _ in trees])
        roots = integers([root for _, root in trees])
        for job, root in trees:
            if job.slot in found:
                row = self._its_network.conflicts_with(job.slot, root, slots, roots)
                for place in np.flatnonzero(row).tolist():
                    pair = sorted((job.number, trees[place][0].number))
                    self.excluded.add((pair[0], pair[1]))
        return found


@pytest.mark.parametrize("quota", Quota)
def test_who_is_excluded_waits_and_others_do_not(quota: Quota) -> None:
    saved = []
    for is_pairwise in (False, True):
        setting = make_setting(_TREE, quota=quota, speeds=SHARING, is_pairwise=is_pairwise)
        assert isinstance(setting.network, FatTreeNetwork)
        recorded = _Recorded(setting.network)
        setting = replace(setting, trees=recorded)
        operations: list[Operation] = []
        result = simulate(setting, draw_requests(HISTOGRAMS[9], 40), on_operation=operations.append)
        in_flight: list[Operation] = []
        together: set[tuple[int, int]] = set()
        for one in sorted((one for one in operations if one.uses_ina), key=lambda one: one.begin):
            in_flight = [other for other in in_flight if other.end > one.begin + 1e-9]
            together.update((min(one.job, other.job), max(one.job, other.job)) for other in in_flight)
            in_flight.append(one)
        assert recorded.excluded
        assert not together & recorded.excluded
        saved.append(result.saved_mean)
    in_groups, in_pairs = saved
    assert in_groups is not None
    assert in_pairs is not None
    assert in_pairs > in_groups
