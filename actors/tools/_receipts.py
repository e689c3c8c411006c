"""Which files a tool call touched, told from its arguments."""

from __future__ import annotations

import os
import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING

from understudy.protocol import Receipt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from understudy.protocol.files import FileMode
    from understudy.protocol.model import JsonObject, JsonValue

WELL_KNOWN = ("path", "file_path", "filePath", "file", "filename", "file_name", "fileName", "filepath", "absolute_path")
"""What tools of the field call a path; the first one present counts."""

_MAX_PATH = 4096


def paths_among(arguments: JsonObject, declared: tuple[str, ...] | None) -> tuple[str, ...]:
    """The paths a call names: in the declared arguments, or else in the first well-known one it has."""
    names = declared if declared is not None else tuple(name for name in WELL_KNOWN if name in arguments)[:1]
    return tuple(text for name in names for text in _texts(arguments.get(name)))


def receipts_of(paths: tuple[str, ...], *, mode: FileMode, observed: bool, cwd: str) -> tuple[Receipt, ...]:
    """A receipt with a canonical absolute path for each, once; asks the file system, so it belongs off the loop.

    Paths outside the run's roots are receipts too: whoever merges them drops and counts them.
    """
    found = dict.fromkeys(os.path.realpath(Path(cwd) / path) for path in paths)
    return tuple(Receipt(path, mode, observed=observed) for path in found)


def _texts(value: JsonValue) -> Iterator[str]:
    """The paths in one argument: itself, or the members of a list."""
    for text in value if isinstance(value, list) else [value]:
        if isinstance(text, str) and text.strip() and len(text) <= _MAX_PATH and "://" not in text and _plain(text):
            yield text


def _plain(text: str) -> bool:
    return not any(unicodedata.category(character) in {"Cc", "Cs"} for character in text)
