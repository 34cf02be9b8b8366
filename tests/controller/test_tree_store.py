"""What the coordinator of tree migration finds again."""

from __future__ import annotations

import json

from inaproto.core.migration.events import JobRecord, MigrationRecord, Tree
from inaproto.core.migration.numbers import StoredTrees
from inaproto.wire.messages.trees import FabricTree
from inaproto_controller.service.trees.store import decode_record, encode_record

TREE = FabricTree("spine", (("leaf", "mid"), ("mid", "spine")), ("mid",))
RECORD = MigrationRecord(3, 2, 5, (JobRecord("a", Tree(7, ("leaf", "spine")), 4, None),))


def test_a_tree_is_found_again_with_the_switches_that_only_pass_on() -> None:
    found = decode_record(encode_record(StoredTrees(RECORD, {7: TREE}, 9)))
    assert (found.record, found.trees, found.next_number) == (RECORD, {7: TREE}, 9)


def test_a_record_from_before_switches_could_only_pass_on_is_read() -> None:
    fields = json.loads(encode_record(StoredTrees(RECORD, {7: TREE}, 9)))
    fields["trees"] = [tree[:3] for tree in fields["trees"]]
    assert decode_record(json.dumps(fields).encode()).trees == {7: TREE._replace(passing=())}
