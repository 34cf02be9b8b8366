"""What the coordinator of tree migration must find again, as bytes of records in the store.

A tree is a number to the coordinator; which switches hang where in it is written beside.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from inaproto.core.migration.events import JobRecord, MigrationRecord, Tree
from inaproto.core.migration.numbers import StoredTrees, numbers_in
from inaproto.errors import ConfigError, LocalMisuse
from inaproto.wire.messages.trees import FabricTree

FORMAT: Final = 1


def encode_record(stored: StoredTrees) -> bytes:
    """``decode_record`` gives it back."""
    record = stored.record
    fields = {
        "format": FORMAT,
        "term": record.term,
        "plan": record.plan,
        "epoch": record.epoch,
        "jobs": [[one.job, _tree(one.tree), one.epoch, _tree(one.target)] for one in record.jobs],
        "trees": [[number, *tree] for number, tree in sorted(stored.trees.items())],
        "next": stored.next_number,
    }
    return json.dumps(fields).encode()


def decode_record(body: bytes) -> StoredTrees:
    """Raises ``ConfigError`` for what this program did not write."""
    try:
        fields = json.loads(body)
        if fields["format"] != FORMAT:
            raise ConfigError(f"record of trees: format {fields['format']}, this program knows {FORMAT}")
        record = MigrationRecord(
            fields["term"],
            fields["plan"],
            fields["epoch"],
            tuple(
                JobRecord(job, _tree_of(tree), epoch, _tree_of(to)) for job, tree, epoch, to in fields["jobs"]
            ),
        )
        trees = {
            number: FabricTree(root, tuple((one, over) for one, over in above), *map(tuple, passing))
            for number, root, above, *passing in fields["trees"]  # written before trees had ``passing``: none
        }
        next_number = max([int(fields.get("next", 1)), *(number + 1 for number in trees)])
    except (ValueError, KeyError, TypeError, LocalMisuse) as error:
        raise ConfigError(f"record of trees cannot be read: {error!r}") from None
    if missing := [number for number in numbers_in(record) if number not in trees]:
        raise ConfigError(f"record of trees: tree {missing[0]} is not in it")
    return StoredTrees(record, trees, next_number)


def encode_pins(pins: Mapping[str, str]) -> bytes:
    """``pins``: the root that each job is to have, by wish of a person; their order is kept."""
    return json.dumps({"format": FORMAT, "roots": dict(pins)}).encode()


def decode_pins(body: bytes) -> dict[str, str]:
    """Raises ``ConfigError``."""
    try:
        roots = json.loads(body)["roots"]
        return {str(job): str(root) for job, root in roots.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"record of wished roots cannot be read: {error!r}") from None


def _tree(tree: Tree | None) -> list[Any] | None:
    return None if tree is None else [tree.tree_id, tree.switches]


def _tree_of(fields: list[Any] | None) -> Tree | None:
    return None if fields is None else Tree(fields[0], tuple(fields[1]))
