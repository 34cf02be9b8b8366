"""Cells of tables whose text is not ours: Rich reads a text as markup, where ``[/data]`` is an error and
``[0]`` is not shown."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text


def plain(*values: object) -> Iterator[Text]:
    """Each value as it is written, for ``Table.add_row``."""
    return (Text(str(value)) for value in values)
