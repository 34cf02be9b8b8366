"""One checker that stands for all checkers of a world."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

Checker = TypeVar("Checker")


def together(kind: type[Checker], checkers: Sequence[Checker]) -> Checker:
    """A ``kind`` each of whose hooks calls that of all ``checkers``, in their order.

    Of the ``kind`` itself only ``begin`` does anything, so others are called of who has a hook of its own.
    """
    everyone = kind()
    for name, hook in vars(kind).items():
        if callable(hook) and not name.startswith("_"):
            theirs = [one for one in checkers if name == "begin" or getattr(type(one), name) is not hook]
            setattr(everyone, name, _each([getattr(checker, name) for checker in theirs]))
    return everyone


def _each(hooks: list[Callable[..., None]]) -> Callable[..., None]:
    def call(*what: Any, **named: Any) -> None:
        for hook in hooks:
            hook(*what, **named)

    return call
