"""What the compiled copy has different from the source: what mypyc gets wrong, or slow, spelt anew.

- mypyc evaluates the annotation of a dataclass field when the module is imported. It has no object for some
  builtin classes (``memoryview``: ``KeyError``), and none for a class that is imported for type checking
  alone (a native one crashes the interpreter), and quotes do not change that. A union it does not evaluate,
  so such a field's ``X`` becomes ``X | X``, which mypyc takes for ``X`` when it compiles.
- It makes no native class that derives from a named tuple: such a class is marked as an ordinary one.
- It takes a named slice of bytes for an index (``TypeError``): the slice is written where it is used.
- Dataclasses and named tuples are made slowly: ``records`` says how they are spelt instead.

Lines keep their numbers: what is new takes the place of the empty line before a class or below it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from inaproto_hil.compiled.records import is_dataclass, records

_NO_OBJECT: Final = frozenset({"memoryview"})
"""Builtin classes that mypyc has no object for."""
_FUTURE: Final = "from __future__ import annotations"
_IMPORTS: Final = "; from mypy_extensions import mypyc_attr; from dataclasses import dataclass"
_MARK: Final = "@mypyc_attr(native_class=False)\n"


@dataclass(frozen=True, slots=True, order=True)
class _Edit:
    """Columns of a line count bytes, as those of ``ast`` do."""

    line: int
    begin: int
    end: int
    text: str

    @classmethod
    def of(cls, node: ast.expr, text: str) -> _Edit:
        """Instead of a node that does not run over its line."""
        assert node.end_col_offset is not None, "parsed from a text"
        return cls(node.lineno - 1, node.col_offset, node.end_col_offset, text)


def rewrite(source: str) -> str:
    """The source of one module as it is to be compiled."""
    tree = ast.parse(source)
    lines = [line.encode() for line in source.splitlines(keepends=True)]
    spelt = list(records(tree))
    edits = {*_unions(tree), *_slices(tree), *(_Edit.of(*record.edit) for record in spelt)}
    for edit in sorted(edits, reverse=True):  # the columns before it stay right
        line = lines[edit.line]
        lines[edit.line] = line[: edit.begin] + edit.text.encode() + line[edit.end :]
    new = {_line_before(node): _MARK for node in _of_named_tuples(tree)}
    new |= {_line_before(record.node): record.mark for record in spelt if record.mark}
    new |= {_line_below(record.node): record.init for record in spelt}
    lines += [b"\n"] * (max(new, default=0) + 1 - len(lines))
    for number, text in new.items():
        assert not lines[number].strip(), f"line {number + 1} is not empty, as it is in formatted source"
        lines[number] = text.encode()
    text = b"".join(lines).decode()
    return text.replace(_FUTURE, _FUTURE + _IMPORTS, 1) if new else text


# --- annotations of dataclass fields that have no object


def _unions(tree: ast.Module) -> Iterator[_Edit]:
    unknown = _NO_OBJECT | set(_typing_only(tree))
    for node in _classes(tree):
        if not any(map(is_dataclass, node.decorator_list)):
            continue
        for statement in node.body:
            match statement:
                case ast.AnnAssign(annotation=ast.Name(id=name) as annotation) if name in unknown:
                    yield _Edit.of(annotation, f"{name} | {name}")
                case _:
                    pass


def _typing_only(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        match node:
            case ast.If(test=ast.Name(id="TYPE_CHECKING"), body=body):
                for statement in body:
                    if isinstance(statement, ast.Import | ast.ImportFrom):
                        yield from (alias.asname or alias.name for alias in statement.names)
            case _:
                pass


# --- classes that derive from a named tuple of their module


def _of_named_tuples(tree: ast.Module) -> Iterator[ast.ClassDef]:
    tuples: set[str] = set()
    for node in _classes(tree):
        bases = {base.id for base in node.bases if isinstance(base, ast.Name)}
        if bases & tuples:
            yield node
        if bases & (tuples | {"NamedTuple"}):
            tuples.add(node.name)


def _line_before(node: ast.ClassDef) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)]) - 2


def _line_below(node: ast.ClassDef) -> int:
    assert node.end_lineno is not None, "parsed from a text"
    return node.end_lineno


def _classes(tree: ast.Module) -> Iterator[ast.ClassDef]:
    return (node for node in tree.body if isinstance(node, ast.ClassDef))


# --- slices that have a name


def _slices(tree: ast.Module) -> Iterator[_Edit]:
    named = dict(_named_slices(tree))
    for node in ast.walk(tree):
        match node:
            case ast.Subscript(slice=ast.Name(id=name) as index, ctx=ast.Load()) if name in named:
                yield _Edit.of(index, named[name])


def _named_slices(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Constants of the module, and how each is written in brackets."""
    for node in tree.body:
        match node:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(ast.Name("slice"), arguments, []))
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.Call(ast.Name("slice"), arguments, []))
            ) if len(arguments) > 1 and all(isinstance(one, ast.Constant) for one in arguments):
                yield name, ":".join("" if text == "None" else text for text in map(ast.unparse, arguments))
