"""What ``help()`` shows of the Python interface: written out where one calls it, and for whom."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

import inaproto

CLASSES: Final = [
    inaproto.Communicator,
    inaproto.BlockingCommunicator,
    inaproto.Work,
    inaproto.BlockingWork,
    inaproto.Model,
    inaproto.BlockingModel,
]
PAIRS: Final = [
    (inaproto.connect, inaproto.connect_blocking),
    (inaproto.connect_model, inaproto.connect_model_blocking),
    (inaproto.Communicator.all_reduce, inaproto.BlockingCommunicator.all_reduce),
    (inaproto.Communicator.shrink, inaproto.BlockingCommunicator.shrink),
    (inaproto.Communicator.split, inaproto.BlockingCommunicator.split),
    (inaproto.Communicator.group, inaproto.BlockingCommunicator.group),
    (inaproto.Model.finish, inaproto.BlockingModel.finish),
    (inaproto.Model.pull, inaproto.BlockingModel.pull),
    (inaproto.Model.make_durable, inaproto.BlockingModel.make_durable),
    (inaproto.Model.leave, inaproto.BlockingModel.leave),
]


def public() -> Iterator[tuple[str, Any]]:
    """Everything that a program may call or read, by name."""
    for name in inaproto.__all__:
        thing = getattr(inaproto, name)
        if inspect.isfunction(thing):
            yield name, thing
    for kind in CLASSES:
        yield kind.__name__, kind
        for name, member in inspect.getmembers(kind):
            if not name.startswith("_"):
                yield f"{kind.__name__}.{name}", member


PUBLIC: Final = dict(public())
CALLS: Final = {name: thing for name, thing in PUBLIC.items() if inspect.isfunction(thing)}


def own_words(thing: Any) -> str:
    """Its own docstring, or that of the class which has the method: none is looked for elsewhere."""
    return inspect.getdoc(thing) or ""


@pytest.mark.parametrize("name", PUBLIC)
def test_everything_public_says_what_it_is(name: str) -> None:
    words = own_words(PUBLIC[name])
    assert words, "has no docstring"
    assert not re.match(r"As (:|`)", words), "sends the reader elsewhere"


@pytest.mark.parametrize("name", CALLS)
def test_signatures_name_their_parameters(name: str) -> None:
    for parameter in inspect.signature(CALLS[name]).parameters.values():
        assert parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD), parameter
        assert parameter.annotation is not parameter.empty or parameter.name == "self", parameter


def test_all_reduce_and_connect_explain_each_parameter_and_have_an_example() -> None:
    pages = {
        name: call
        for name, call in CALLS.items()
        if re.search(r"connect|all_reduce|broadcast|all_gather|reduce|split|barrier|group|pull", name)
    }
    assert len(pages) == 22
    for name, call in pages.items():
        words = own_words(call)
        for parameter in inspect.signature(call).parameters:
            assert parameter == "self" or re.search(rf"\b{parameter}\b", words), f"{name}: {parameter}"
        if not re.search("model|pull", name, re.IGNORECASE):
            assert "::\n" in words, f"{name} has no example"


@pytest.mark.parametrize("name", CALLS)
def test_examples_are_python(name: str) -> None:
    for example in re.findall(r"::\n\n((?:    .*\n|\n)+)", own_words(CALLS[name]) + "\n"):
        source = "async def example():\n" + textwrap.indent(textwrap.dedent(example), "    ")
        ast.parse(source)
        if name.startswith(("Blocking", "connect_blocking", "connect_model_blocking")):
            assert "await" not in re.sub(r"\(In a Trio program.*?\)", "", example)


@pytest.mark.parametrize(("trio_s", "blocking"), PAIRS, ids=[f"{call.__qualname__}" for call, _ in PAIRS])
def test_both_kinds_say_the_same(trio_s: Callable[..., Any], blocking: Callable[..., Any]) -> None:
    """The two are written out, so a change of one has to be made in the other."""

    def said(call: Callable[..., Any]) -> str:
        words = re.sub(r"::\n\n(?:    .*\n|\n)+", "\n", own_words(call) + "\n")  # without examples
        words = " ".join(re.sub(r"[Bb]locking(?=[A-Z])|_blocking", "", words).split())
        for only_there in (
            r"; for Trio programs|; for plain scripts|; ``\.wait\(\)`` gives the result|, and return at once",
            r" ``dial`` connects to a socket; tests pass an in-memory one .* same process\.",
            r" ``dial``: as of :func:`connect`\.",
            r" While there is a progress thread .* it queues\.",
        ):
            words = re.sub(only_there, "", words)
        return words

    assert said(trio_s) == said(blocking)
