"""The reference: what each room's `__init__` shows, with signatures and docstrings, as one page."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
import textwrap
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from understudy.actors.tools import Tool

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference.md"
# In the order in which a reader meets them; a room that is not among them comes last.
FIRST = ("actors", "protocol", "actors/runners", "actors/tools", "actors/models", "actors/testing")
SHOWN_BY_ANOTHER = {"persistence/memory"}
WIDTH = 100
LONGEST_VALUE = 400

# Public for the rest of their room, and nothing for hosts.
MACHINERY = {
    "Core": {"begin", "end", "open_session", "letters", "put_back", "searcher"},
    "LoopActor": {
        "cancelled_from_outside",
        "exit_cause",
        "exit_error",
        "go",
        "launch",
        "leave",
        "log_returned",
        "name",
        "parent",
        "report_exit",
        "run_on_cancel",
        "run_on_failure",
        "run_on_start",
    },
}
# Who is made with one of these is handed out, not made.
HANDED_OUT = ("Backstage", "LiveRun", "Reader", "RunContext", "SessionActor", "WardenLine")

HEAD = """# Reference

What each package shows: everything else is private, and may change. Made from the docstrings by `./scripts/reference`.
"""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def rooms() -> list[str]:
    """The packages that say what they show, as folders."""
    found = sorted(
        str(file.parent.relative_to(ROOT))
        for room in ("protocol", "persistence", "actors", "gateway")
        for file in (ROOT / room).rglob("__init__.py")
        if "__all__" in file.read_text(encoding="utf-8")
    )
    return [*FIRST, *(room for room in found if room not in {*FIRST, *SHOWN_BY_ANOTHER})]


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    shown: dict[str, str] = {}
    for folder in rooms():
        name = "understudy." + folder.replace("/", ".")
        room = importlib.import_module(name)
        parts.append(f"## {name}\n\n{prose(room.__doc__ or '')}\n")
        for public in sorted(room.__all__, key=str.casefold):
            home = origin(room, public)
            if home in shown:
                parts.append(f"### {public}\n\nThat of `{shown[home]}`.\n")
                continue
            shown[home] = name
            parts.append(f"### {public}\n\n{entry(room, public)}\n")
    return "\n".join(parts)


def entry(room: ModuleType, public: str) -> str:
    """One name."""
    found = getattr(room, public)
    if inspect.isclass(found):
        return class_entry(public, found)
    if inspect.isfunction(found):
        return described(signature(public, node_of(found)), found.__doc__)
    if isinstance(found, Tool):
        return described(signature(found.name, node_of(found.function)), found.description)
    if inspect.ismodule(found):
        return prose(found.__doc__ or "")
    return value_entry(*origin(room, public).rsplit(".", 1))


def class_entry(public: str, found: type) -> str:
    """How to make one, what it is, what it has."""
    family = [found, *(base for base in found.__mro__[1:] if is_ours(base) and not is_shown(base))]
    makers = [made for member in family for made in methods_of(member) if made.name == "__init__"]
    made = makers[0] if makers and not any(name in ast.unparse(makers[0].args) for name in HANDED_OUT) else None
    # What a class that says nothing of its own inherits is not told again.
    own = found.__doc__ if "__doc__" in vars(found) else None
    parts = [described("" if made is None else signature(public, made), own)]
    if made is not None and (told := ast.get_docstring(made)):
        parts.append(prose(told))
    base = next((base for base in found.__mro__[1:] if is_ours(base) and is_shown(base)), None)
    if base is not None:
        parts.append(f"With everything of `{base.__name__}`.")
    parts.append("\n".join(members(family)))
    return "\n\n".join(part for part in parts if part)


def members(family: list[type]) -> Iterator[str]:
    """Fields first, then properties and methods, each once, the class's own before those it inherits."""
    seen: set[str] = set()
    for told_in in (fields_of, calls_of):
        for member in family:
            hidden = MACHINERY.get(member.__name__, set())
            for name, text in told_in(member):
                if not name.startswith("_") and name not in seen | hidden:
                    seen.add(name)
                    yield text


def calls_of(member: type) -> Iterator[tuple[str, str]]:
    """Properties and methods in a class's body."""
    for node in methods_of(member):
        told = prose(ast.get_docstring(node) or "", inline=True)
        marks = {ast.unparse(mark) for mark in node.decorator_list}
        if marks & {"property", "cached_property"}:
            kind = "" if node.returns is None else f": {ast.unparse(node.returns)}"
            yield node.name, item(f"{node.name}{kind}", told)
        elif not any(mark.startswith(("field_", "model_", "overload")) for mark in marks):
            yield node.name, item(signature(node.name, node, wide=True), told)


def fields_of(member: type) -> Iterator[tuple[str, str]]:
    """Annotated names of a class and of its instances, with what stands in quotes below them; members of an enum."""
    node = class_node(member)
    makers = [made.body for made in methods_of(member) if made.name == "__init__"]
    for body in (node.body, *makers):
        for place, line in enumerate(body):
            told = quoted_below(body, place)
            if isinstance(line, ast.AnnAssign):
                name, kind = ast.unparse(line.target), f": {ast.unparse(line.annotation)}"
            elif isinstance(line, ast.Assign) and (told or "Enum" in type(member).__name__):
                name, kind = ast.unparse(line.targets[0]), ""
            else:
                continue
            known = line.value is not None and body is node.body
            default = f" = {ast.unparse(line.value)}" if known and line.value is not None else ""
            name = name.removeprefix("self.")
            yield name, item(f"{name}{kind}{default}", prose(told, inline=True))


def quoted_below(body: list[ast.stmt], place: int) -> str:
    """The string that stands under a statement, or nothing."""
    below = body[place + 1] if place + 1 < len(body) else None
    if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and isinstance(below.value.value, str):
        return inspect.cleandoc(below.value.value)
    return ""


def value_entry(module: str, name: str) -> str:
    """A constant or an alias: what it is, and what is said of it."""
    body = tree_of(module).body
    for place, node in enumerate(body):
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        if [ast.unparse(target) for target in targets] == [name] and node.value is not None:
            code = textwrap.shorten(ast.unparse(node.value), LONGEST_VALUE, placeholder=" …")
            return described(f"{name} = {code}", quoted_below(body, place))
    raise LookupError(f"{module} has no {name}")


# -- the source behind a name ---------------------------------------------------------------------


@cache
def tree_of(module: str) -> ast.Module:
    """A module, parsed."""
    return parsed(inspect.getsource(importlib.import_module(module)))


class _Plain(ast.NodeTransformer):
    """Says what a type is and what a default, without what pydantic is told besides."""

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        """``Annotated[int, …]`` is an int."""
        self.generic_visit(node)
        inner = node.slice
        plain = isinstance(node.value, ast.Name) and node.value.id == "Annotated" and isinstance(inner, ast.Tuple)
        return inner.elts[0] if plain and isinstance(inner, ast.Tuple) else node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """``Field(default=None, …)`` is None."""
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id in {"Field", "field"}:
            for keyword in node.keywords:
                if keyword.arg == "default":
                    return keyword.value
                if keyword.arg == "default_factory":
                    return (
                        keyword.value.body if isinstance(keyword.value, ast.Lambda) else ast.Call(keyword.value, [], [])
                    )
        return node


def parsed(source: str) -> ast.Module:
    """Source as it is told."""
    plain: ast.Module = _Plain().visit(ast.parse(source))
    return plain


def class_node(found: type) -> ast.ClassDef:
    """A class, parsed."""
    return next(
        node
        for node in ast.walk(tree_of(found.__module__))
        if isinstance(node, ast.ClassDef) and node.name == found.__name__
    )


def methods_of(found: type) -> Iterator[Function]:
    """The functions in a class's body."""
    yield from (node for node in class_node(found).body if isinstance(node, Function))


def node_of(function: object) -> Function:
    """A function, parsed; of overloads the one that works."""
    (node,) = parsed(textwrap.dedent(inspect.getsource(inspect.unwrap(function)))).body  # type: ignore[arg-type]
    assert isinstance(node, Function)
    return node


def origin(room: ModuleType, public: str) -> str:
    """Where a name that a room shows was made."""
    found = getattr(room, public)
    if inspect.isclass(found) or inspect.isfunction(found):
        return f"{found.__module__}.{found.__qualname__}"
    for node in tree_of(room.__name__).body:
        if isinstance(node, ast.ImportFrom) and public in {alias.name for alias in node.names}:
            return f"{node.module}.{public}"
    return f"{room.__name__}.{public}"


def is_ours(found: type) -> bool:
    """Whether it is this library's."""
    return found.__module__.startswith("understudy.")


@cache
def is_shown(found: type) -> bool:
    """Whether it has an entry of its own."""
    names = ("understudy." + folder.replace("/", ".") for folder in rooms())
    return any(getattr(importlib.import_module(name), found.__name__, None) is found for name in names)


# -- how it is written ----------------------------------------------------------------------------


def signature(name: str, node: Function, *, wide: bool = False) -> str:
    """A call as it is written, on one line or, where it is long, on several."""
    marks = {ast.unparse(mark) for mark in node.decorator_list}
    arguments = node.args
    if arguments.args and arguments.args[0].arg in {"self", "cls"} and "staticmethod" not in marks:
        arguments.args = arguments.args[1:]
    gives = "" if node.returns is None or node.name == "__init__" else f" -> {ast.unparse(node.returns)}"
    awaited = isinstance(node, ast.AsyncFunctionDef) and "contextlib.asynccontextmanager" not in marks
    prefix = "await " if awaited and not any(isinstance(part, ast.Yield) for part in ast.walk(node)) else ""
    line = f"{prefix}{name}({', '.join(split(arguments))}){gives}"
    if wide or len(line) <= WIDTH:
        return line
    return f"{prefix}{name}(\n" + "".join(f"    {part},\n" for part in split(arguments)) + f"){gives}"


def split(arguments: ast.arguments) -> list[str]:
    """The arguments one by one."""
    only = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
    plain = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(plain) - len(arguments.defaults)) + list(arguments.defaults)
    parts = []
    for argument, default in zip(plain, defaults, strict=True):
        parts.append(_one(argument, default))
        if arguments.posonlyargs and argument is arguments.posonlyargs[-1]:
            parts.append("/")
    if arguments.vararg is not None:
        only.vararg = arguments.vararg
        parts.append(ast.unparse(only))
    elif arguments.kwonlyargs:
        parts.append("*")
    parts += [
        _one(argument, default) for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    ]
    return [*parts, f"**{ast.unparse(arguments.kwarg)}"] if arguments.kwarg is not None else parts


def _one(argument: ast.arg, default: ast.expr | None) -> str:
    return ast.unparse(argument) if default is None else f"{ast.unparse(argument)} = {ast.unparse(default)}"


def described(head: str, told: str | None) -> str:
    """A signature and its docstring."""
    code = f"```py\n{head}\n```\n\n" if head else ""
    return code + prose(told or "")


def item(head: str, told: str) -> str:
    """A member, on one line."""
    return f"- `{head}`" + (f": {told}" if told else "")


def prose(told: str, *, inline: bool = False) -> str:
    """A docstring as Markdown; its example is code."""
    text, _, example = inspect.cleandoc(told).partition("\nExample:\n")
    text = re.sub(r":\w+:`~?(?:[\w.]+\.)?(\w+)`", r"`\1`", text).replace("``", "`").strip()
    if inline:
        return " ".join(text.split())
    return text + (f"\n\n```pycon\n{textwrap.dedent(example).strip()}\n```" if example else "")


def main() -> int:
    """Write the page, or with --check compare it."""
    new = page()
    if "--check" in sys.argv[1:]:
        if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == new:
            return 0
        print("docs/reference.md is not up to date: run ./scripts/reference", file=sys.stderr)
        return 1
    PAGE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
