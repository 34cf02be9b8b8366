"""Records of the compiled copy: dataclasses and named tuples as classes that mypyc makes and reads fast.

mypyc leaves the ``__init__`` of a dataclass to the interpreter, and that of a frozen one sets each field
through ``object.__setattr__``; a named tuple is a foreign class to it, whose fields it looks up by name.
Spelt with an ``__init__`` of its own, and not frozen, an object is made several times faster. That nothing
sets a field of a frozen one, mypy has found out of the source.

Lines keep their numbers: ``__init__`` takes the place of the empty line below the class.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

KEPT: Final = {
    **dict.fromkeys(
        (
            "Contradiction",
            "Fate",
            "MessageInProgress",
            "Part",
            "PostSlot",
            "Sent",
            "Traffic",
            "_Forward",
            "_Layout",
        ),
        "is used as a tuple",
    ),
    "Flow": "TreeFlow derives from it, whose ``__init__`` mypyc would take for one of the same parameters",
}
"""Records that stay what they are, and why."""
NAMED_TUPLE: Final = "NamedTuple"


@dataclass(frozen=True, slots=True)
class Record:
    """A class whose ``__init__`` can be spelt in one line."""

    node: ast.ClassDef
    decorator: ast.expr | None
    """That makes it a dataclass; None for a named tuple."""

    @property
    def init(self) -> str:
        fields = list(_fields(self.node))
        given = [f"{name}: {annotation}{default}" for name, annotation, default in fields]
        star = ["*"] if self._says("kw_only", True) else []
        done = [f"self.{name} = {name}" for name, _, _ in fields]
        done += ["self.__post_init__()"] if "__post_init__" in _functions(self.node) else []
        return f"    def __init__({', '.join(['self', *star, *given])}) -> None: {'; '.join(done)}\n"

    @property
    def mark(self) -> str:
        """The line above the class, if there is to be one."""
        return "" if self.decorator else "@dataclass(init=False, unsafe_hash=True)\n"

    @property
    def edit(self) -> tuple[ast.expr, str]:
        """What to write instead of which node."""
        if self.decorator is None:
            return self.node.bases[0], "object"
        kept = [ast.unparse(one) for one in self._keywords if one.arg != "frozen"]
        if self._says("frozen", True) and not self._says("eq", False):
            kept.append("unsafe_hash=True")
        return self.decorator, f"dataclass({', '.join(['init=False', *kept])})"

    @property
    def _keywords(self) -> list[ast.keyword]:
        return self.decorator.keywords if isinstance(self.decorator, ast.Call) else []

    def _says(self, name: str, value: bool) -> bool:
        return any(
            one.arg == name and isinstance(one.value, ast.Constant) and one.value.value is value
            for one in self._keywords
        )


def records(tree: ast.Module) -> Iterator[Record]:
    """Those of a module that derive from nothing and that nothing in it derives from."""
    bases = {base.id for node in _classes(tree) for base in node.bases if isinstance(base, ast.Name)}
    for node in _classes(tree):
        if node.name in KEPT or node.name in bases or not _spelt_in_one_line(node):
            continue
        match node.bases, [one for one in node.decorator_list if is_dataclass(one)]:
            case [], [decorator]:
                yield Record(node, decorator)
            case [ast.Name(id=base)], [] if base == NAMED_TUPLE:
                yield Record(node, None)
            case _:
                pass


def is_dataclass(decorator: ast.expr) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return isinstance(called, ast.Name) and called.id == "dataclass"


def _spelt_in_one_line(node: ast.ClassDef) -> bool:
    """Each default is one object, as that of a parameter is; nothing is ``__init__`` yet."""
    options = {one.arg for body in node.body for one in _options(body)}
    own = {"__init__", "__new__"} & _functions(node)
    return not own and not options & {"default_factory", "init", "kw_only"} and any(_fields(node))


def _fields(node: ast.ClassDef) -> Iterator[tuple[str, str, str]]:
    """Name, annotation and default of each."""
    for one in node.body:
        match one:
            case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation, value=value):
                if "ClassVar" in (said := ast.unparse(annotation)):
                    continue
                options = {option.arg: option.value for option in _options(one)}
                default = options.get("default") if options else value
                yield name, said, "" if default is None else f" = {ast.unparse(default)}"
            case _:
                pass


def _options(statement: ast.stmt) -> list[ast.keyword]:
    """What ``field()`` says of a field."""
    match statement:
        case ast.AnnAssign(value=ast.Call(func=ast.Name(id="field"), keywords=options)):
            return options
        case _:
            return []


def _functions(node: ast.ClassDef) -> set[str]:
    return {one.name for one in node.body if isinstance(one, ast.FunctionDef)}


def _classes(tree: ast.Module) -> Iterator[ast.ClassDef]:
    return (node for node in tree.body if isinstance(node, ast.ClassDef))
