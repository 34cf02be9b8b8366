"""One checker that stands for all checkers of a world."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

Checker = TypeVar("Checker")


def together(kind: type[Checker], checkers: Sequence[Checker]) -> Checker:
    """A ``kind`` each of whose hooks calls that of all ``checkers``, in their order."""
    everyone = kind()
    for name, hook in vars(kind).items():
        if callable(hook) and not name.startswith("_"):
            setattr(everyone, name, _each([getattr(checker, name) for checker in checkers]))
    return everyone


def _each(hooks: list[Callable[..., None]]) -> Callable[..., None]:
    def call(*what: Any, **named: Any) -> None:
        for hook in hooks:
            hook(*what, **named)

    return call
