"""The mutants of a module: mutmut's mutation operators over its functions, with identities that last.

A mutant is one small change inside one function or method. Its identity is what changed (function,
lines taken away, lines put in, and which one of equal changes), never a running number, so that a list
of known survivors outlives edits elsewhere in the file.

mutmut's own runner is not used. It calls every function through a trampoline and pytest anew for every
mutant, leaves decorated functions alone (each ``deadline`` of a core is a property) and numbers its
mutants. Here the operators and the visitor that knows where not to mutate are mutmut's; a mutant is put in
place by giving the live function another code object (:mod:`tests.mutation.session`).

What is no function body is not mutated: constants, tables and class bodies of a module. Nor is what mypy or
an assertion holds: the arm of a ``match`` that ends in ``assert_never``, ``strict`` of a ``zip``, and a False
for which None would do.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation.file_mutation import Mutation, MutationVisitor, deep_replace
from mutmut.mutation.mutators import mutation_operators
from mutmut.mutation.pragma_handling import IgnoredCode

from tests.mutation.results import Change


class CannotApply(Exception):
    """The change leaves no function that could take the place of the original one."""


@dataclass(frozen=True, slots=True)
class Mutant:
    change: Change
    lines: range
    """Of the source: tests that run none of them cannot tell the mutant from the original."""
    body: range
    """Lines of the whole function."""
    source: str
    """The whole module, with the change in it; the function starts on the line where it did."""


class _Visitor(MutationVisitor):
    """Decorated functions too: nothing is defined twice here, so their decorators do no harm."""

    def _skip_node_and_children(self, node: cst.CSTNode) -> bool:
        if isinstance(node, cst.FunctionDef) and node.decorators:
            return super()._skip_node_and_children(node.with_changes(decorators=()))
        return super()._skip_node_and_children(node)


def mutants_of(source: str) -> list[Mutant]:
    """All mutants of a module, in order of its functions."""
    wrapper = MetadataWrapper(cst.parse_module(source))
    visitor = _Visitor(mutation_operators, IgnoredCode(set(), set(), set()))
    wrapper.visit(visitor)
    positions = wrapper.resolve(PositionProvider)
    statements = _statements(source)
    lines = source.splitlines()
    by_function: dict[cst.FunctionDef, list[Mutation]] = {}
    for mutation in visitor.mutations:
        if isinstance(mutation.contained_by_top_level_function, cst.FunctionDef):
            by_function.setdefault(mutation.contained_by_top_level_function, []).append(mutation)
    found: list[Mutant] = []
    for qualname, function, nested in _functions(wrapper.module):
        if function not in by_function:
            continue
        original = _render(function, nested)
        start = positions[function].start.line
        body = range(start, start + len(original))
        assert lines[body.start - 1 : body.stop - 1] == original, f"{qualname} is not on lines {body}"
        seen: Counter[tuple[tuple[str, ...], tuple[str, ...]]] = Counter()
        for mutation in by_function[function]:
            mutated = deep_replace(function, mutation.original_node, mutation.mutated_node)
            assert isinstance(mutated, cst.FunctionDef)
            rendered = _render(mutated, nested)
            difference = _difference(original, rendered)
            whole = [*lines[: body.start - 1], *rendered, *lines[body.stop - 1 :]]
            position = positions.get(mutation.original_node)
            span = (position.start.line, position.end.line) if position else (body.start, body.stop - 1)
            if _changes_nothing(*difference):
                continue
            change = Change(qualname, *difference, seen[difference])
            seen[difference] += 1
            found.append(Mutant(change, _reach(*span, statements, body), body, "\n".join(whole) + "\n"))
    return found


def sample_of(mutants: Sequence[Mutant], size: int) -> list[Mutant]:
    """Draw ``size`` of them by their identities: an edit elsewhere in the module leaves them in."""

    def drawn(mutant: Mutant) -> bytes:
        return hashlib.sha256(repr(mutant.change).encode()).digest()

    return sorted(mutants, key=drawn)[:size]


def _functions(module: cst.Module) -> Iterator[tuple[str, cst.FunctionDef, bool]]:
    for node in module.body:
        if isinstance(node, cst.FunctionDef):
            yield node.name.value, node, False
        elif isinstance(node, cst.ClassDef):
            for member in node.body.body:
                if isinstance(member, cst.FunctionDef):
                    yield f"{node.name.value}.{member.name.value}", member, True


def _render(function: cst.FunctionDef, nested: bool) -> list[str]:
    """Lines from ``def`` on, indented as in the file."""
    bare = function.with_changes(decorators=(), leading_lines=(), lines_after_decorators=())
    if not nested:
        return cst.Module([bare]).code.rstrip().splitlines()
    holder = cst.ClassDef(name=cst.Name("_"), body=cst.IndentedBlock([bare]))
    return cst.Module([holder]).code.rstrip().splitlines()[1:]


def _difference(before: list[str], after: list[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    changes = [line for line in difflib.ndiff(before, after) if line[0] in "+-"]
    removed = tuple(line[2:].strip() for line in changes if line[0] == "-")
    return removed, tuple(line[2:].strip() for line in changes if line[0] == "+")


def _changes_nothing(removed: tuple[str, ...], added: tuple[str, ...]) -> bool:
    if any("assert_never" in line for line in removed):
        return True
    before, after = (re.findall(r"\w+|\S", " ".join(lines)) for lines in (removed, added))
    if len(before) == len(after):
        changed = [pair for pair in zip(before, after, strict=True) if pair[0] != pair[1]]
        if changed in ([("False", "None")], [("True", "False")], [("True", "None")]):
            return changed[0][0] == "False" or "strict" in before
    checks = ("strict", "=", "True", ",")
    return "strict" in before and [t for t in before if t not in checks] == [
        t for t in after if t not in checks
    ]


def _statements(source: str) -> list[range]:
    """Lines of every statement, of compound ones the head alone."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.stmt):
            inner = getattr(node, "body", None)
            end = max(node.lineno, inner[0].lineno - 1) if inner else node.end_lineno or node.lineno
            found.append(range(node.lineno, end + 1))
    return found


def _reach(first: int, last: int, statements: list[range], body: range) -> range:
    """Lines that run when the nodes on lines ``first`` to ``last`` matter."""
    around = [lines for lines in statements if first in lines]
    smallest = min(around, key=len, default=body)
    if smallest.start == body.start:
        return body
    return range(smallest.start, max(smallest.stop, last + 1))


def apply(mutant: Mutant, path: str, live: Mapping[tuple[str, int], list[FunctionType]]) -> None:
    """Put ``mutant`` in the place of the functions that are ``live`` (qualified name and first line)."""
    try:
        module = compile(mutant.source, path, "exec", dont_inherit=True)
    except SyntaxError as error:
        raise CannotApply(str(error)) from None
    # A decorated function begins with its decorator; a property and its setter share their name.
    named = [item for item in _code_objects(module) if item[0][0] == mutant.change.function]
    before = [item for item in named if item[0][1] <= mutant.body.start]
    key, code = max(before, key=lambda item: item[0][1], default=(("", 0), module))
    functions = live.get(key, [])
    if not functions:
        raise CannotApply(f"no live function {mutant.change.function}")
    defaults = _constant_defaults(mutant)
    for function in functions:
        try:
            function.__code__ = code
        except ValueError as error:
            raise CannotApply(str(error)) from None
        names = code.co_varnames[: code.co_argcount]
        if function.__defaults__:
            pairs = zip(names[-len(function.__defaults__) :], function.__defaults__, strict=True)
            function.__defaults__ = tuple(defaults.get(name, value) for name, value in pairs)
        if function.__kwdefaults__:
            old = function.__kwdefaults__.items()
            function.__kwdefaults__ = {name: defaults.get(name, value) for name, value in old}


def _code_objects(code: CodeType) -> Iterator[tuple[tuple[str, int], CodeType]]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield (constant.co_qualname, constant.co_firstlineno), constant
            yield from _code_objects(constant)


def _constant_defaults(mutant: Mutant) -> dict[str, Any]:
    """Values of the parameters' defaults that are constants; mutmut mutates no others."""
    for node in ast.walk(ast.parse(mutant.source)):
        if isinstance(node, ast.FunctionDef) and node.lineno == mutant.body.start:
            break
    else:
        raise CannotApply(f"no function on line {mutant.body.start}")
    positional = [*node.args.posonlyargs, *node.args.args]
    pairs: list[tuple[ast.arg, ast.expr | None]] = []
    if node.args.defaults:
        pairs += zip(positional[-len(node.args.defaults) :], node.args.defaults, strict=True)
    pairs += zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
    return {arg.arg: value.value for arg, value in pairs if isinstance(value, ast.Constant)}
