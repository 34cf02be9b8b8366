"""Planting a fault: the code of a real function is replaced as long as a context lasts.

A fault is a small change of the product's source, made in memory: the text that a careless implementer would
have written takes the place of the text that is there. It goes into the function object itself, so
whoever holds the function (an importing module, a table of handlers) runs the changed one. A fault whose
text is no longer found says so: then the code has moved on, and the fault must follow.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from types import CodeType, FunctionType
from typing import Any

from inaproto.core import kernels
from inaproto.sim.frames.draw.swarm import FaultKind, Swarm, WorldConfig

SMALL = Swarm(ranks_max=4, packets_max=400)
"""Worlds of some ten milliseconds each."""
CRASHES = Swarm(ranks_max=4, packets_max=400, kinds=(FaultKind.HOST_CRASH, FaultKind.NIC_RESET))


@dataclass(frozen=True)
class Change:
    """In ``function`` (or the getter of a property), ``right`` is replaced by ``wrong``."""

    function: Any
    right: str
    wrong: str

    def target(self) -> FunctionType:
        function = self.function.fget if isinstance(self.function, property) else self.function
        assert isinstance(function, FunctionType), f"{self.function} is no plain function of the product"
        return function

    @property
    def where(self) -> str:
        target = self.target()
        return f"{target.__module__}.{target.__qualname__}"


@dataclass(frozen=True)
class PlantedFault:
    """A fault. Called, it gives the context in which the product has it."""

    name: str
    paper: str
    """The section of the paper, or the rule of ours, that it breaks."""
    text: str
    """What the careless implementer did."""
    changes: tuple[Change, ...]
    swarm: Swarm = SMALL
    shape: Callable[[WorldConfig], WorldConfig] = field(default=lambda config: config)
    """Makes worlds in which it can show at all."""
    seeds_max: int = 60
    test: str = ""
    """The test that catches it, ``tests/FILE.py::FUNCTION``; empty: worlds do."""
    arguments: tuple[Any, ...] = ()
    """Of the test, if it has parameters."""

    def __call__(self) -> AbstractContextManager[None]:
        return _planted(self)


def fault(
    name: str, paper: str, text: str, function: Any, right: str, wrong: str, **rest: Any
) -> PlantedFault:
    """Of one change; ``rest``: the other fields."""
    return PlantedFault(name, paper, text, (Change(function, right, wrong),), **rest)


def by_name(faults: Mapping[str, PlantedFault]) -> Callable[[str], PlantedFault]:
    """The ``__getattr__`` of a module whose faults these are: for ``--with MODULE:NAME``."""

    def found(name: str) -> PlantedFault:
        if name in faults:
            return faults[name]
        raise AttributeError(f"there is no planted fault {name!r}; there are {', '.join(faults)}")

    return found


@contextmanager
def _planted(fault: PlantedFault) -> Iterator[None]:
    changes: dict[FunctionType, list[Change]] = {}
    for change in fault.changes:
        changes.setdefault(change.target(), []).append(change)
    wrong = {function: _changed(fault.name, function, edits) for function, edits in changes.items()}
    right = {function: function.__code__ for function in wrong}
    had = kernels.active()
    kernels.choose("numpy")  # what has compiled kernels would not run the code that is changed
    try:
        for function, code in wrong.items():
            function.__code__ = code
        yield
    finally:
        kernels.choose("numpy" if had is None else "compiled")
        for function, code in right.items():
            function.__code__ = code


def _changed(name: str, function: FunctionType, changes: list[Change]) -> CodeType:
    """The code of ``function`` with the changes made, at the same lines, so that traces stay true."""
    source = textwrap.dedent(inspect.getsource(function))
    for change in changes:
        found = source.count(change.right)
        if found != 1:
            raise AssertionError(
                f"fault {name}: {change.where} has {found} times {change.right!r}, once was expected; "
                "the code has changed, so must the fault"
            )
        source = source.replace(change.right, change.wrong)
    tree = ast.parse(source)
    definition = tree.body[0]
    assert isinstance(definition, ast.FunctionDef), f"fault {name}: {change.where} is no function"
    definition.decorator_list.clear()
    ast.increment_lineno(tree, function.__code__.co_firstlineno - 1)
    made: dict[str, Callable[..., Any]] = {}
    exec(compile(tree, function.__code__.co_filename, "exec", annotations.compiler_flag), made)
    code = made[definition.name].__code__
    assert (code.co_freevars, function.__code__.co_freevars) == ((), ()), f"{change.where} is a closure"
    return code
