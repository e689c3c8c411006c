"""Changing a JSON file that somebody else looks after: what is not changed stays, to the last blank."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

_BLANK = re.compile(r"[ \t\n\r]*")
_INDENT = re.compile(r"\n([ \t]+)\S")
_DECODER = json.JSONDecoder()

Path = tuple[str | int, ...]
"""The way to a value: names and numbers, from the outermost in."""


@dataclass(frozen=True, slots=True)
class _Child:
    """A member of an object or an item of an array: where it stands with its name, and where its value begins."""

    name: str | int
    start: int
    value: int
    end: int


def parsed(text: str) -> Any:
    """The document; a ValueError for anything that is not strictly JSON."""
    return json.loads(text, parse_constant=_refuse, object_pairs_hook=_unique)


def with_added(text: str, path: Path, name: str | None, value: object) -> str:
    """``text`` with ``value`` as the last in the container at ``path``; under ``name`` if that is an object."""
    start, end = _at(text, path)
    children = _children(text, start)
    label = "" if name is None else f"{json.dumps(name)}: "
    newline = "\r\n" if "\r\n" in text else "\n"
    if children:
        indent = _indent_of(text, children[-1].start)
        place, before, after = children[-1].end, ",", ""
        if indent is None:
            before += " "
    else:
        outer = None if "\n" not in text else _line_indent(text, start)
        indent = None if outer is None else outer + _unit(text)
        place, before, after = end - 1, "", "" if outer is None else newline + outer
    if indent is None:
        return f"{text[:place]}{before}{label}{json.dumps(value)}{after}{text[place:]}"
    lines = json.dumps(value, indent=_unit(text)).splitlines()
    written = (newline + indent).join([label + lines[0], *lines[1:]])
    return f"{text[:place]}{before}{newline}{indent}{written}{after}{text[place:]}"


def without(text: str, path: Path) -> str:
    """``text`` without what is at ``path``."""
    start, end = _at(text, path[:-1])
    children = _children(text, start)
    (number,) = (number for number, child in enumerate(children) if child.name == path[-1])
    if number:
        first, last = children[number - 1].end, children[number].end
    elif len(children) > 1:
        first, last = children[0].start, children[1].start
    else:
        first, last = start + 1, end - 1
    return text[:first] + text[last:]


def _at(text: str, path: Path) -> tuple[int, int]:
    start = _skip(text, 0)
    for step in path:
        start = next(child.value for child in _children(text, start) if child.name == step)
    return start, _DECODER.raw_decode(text, start)[1]


def _children(text: str, start: int) -> list[_Child]:
    """What is in the object or array that begins there; the text is known to be JSON."""
    found: list[_Child] = []
    place = _skip(text, start + 1)
    while text[place] not in "}]":
        first, name = place, len(found)
        if text[start] == "{":
            key, place = _DECODER.raw_decode(text, place)
            name, place = key, _skip(text, _skip(text, place) + 1)
        end = _DECODER.raw_decode(text, place)[1]
        found.append(_Child(name, first, place, end))
        place = _skip(text, end)
        if text[place] == ",":
            place = _skip(text, place + 1)
    return found


def _skip(text: str, place: int) -> int:
    found = _BLANK.match(text, place)
    assert found is not None
    return found.end()


def _unit(text: str) -> str:
    """What one step is indented by: as the first line that is."""
    found = _INDENT.search(text)
    return "  " if found is None else found[1]


def _indent_of(text: str, start: int) -> str | None:
    """What stands before something on its line, if that is nothing but blanks."""
    before = text[text.rfind("\n", 0, start) + 1 : start]
    return before if "\n" in text[:start] and not before.strip() else None


def _line_indent(text: str, place: int) -> str:
    line = text[text.rfind("\n", 0, place) + 1 : place]
    return line[: len(line) - len(line.lstrip())]


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} stands there twice")
    return found
