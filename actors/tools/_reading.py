"""Some lines of a file, whatever its size, with an exact count of what is left out."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from understudy.actors.tools.outcome import ToolError

if TYPE_CHECKING:
    from io import FileIO

MAX_LINES = 2_000
"""The most lines one read returns."""

MAX_BYTES = 64 * 1024
"""The most bytes one read returns."""

MAX_SKIPPED = 256 * 1024 * 1024
"""How far into a file the first line may lie: to find a line, everything before it is read."""

_CHUNK = 1024 * 1024
# git and grep look as far, and for the same byte.
_BINARY_PROBE = 8_192


def read_lines(file: FileIO, *, shown: str, offset: int, limit: int) -> str:
    """Lines ``offset`` to ``offset + limit - 1``, cut at `MAX_BYTES`, and a note on what was left out."""
    size = os.fstat(file.fileno()).st_size
    if b"\0" in file.read(_BINARY_PROBE):
        raise ToolError(f"{shown!r} is binary ({size} bytes): only text can be read")
    start = _start_of(file, shown, offset)
    file.seek(start)
    data = _up_to(file, MAX_BYTES + 1)
    if not data:
        if offset > 1:
            raise _beyond(file, shown, offset)
        return f"{shown!r} is empty"
    body, lines = _cut(data, limit)
    text = body.decode("utf-8", "replace")
    end = start + len(body)
    notes = []
    if "\ufffd" in text and b"\xef\xbf\xbd" not in body:
        notes.append("it is not all UTF-8: what cannot be decoded is shown as \ufffd")
    if end < size:
        onward = f"go on with offset={offset + lines}" if body.endswith(b"\n") else "the rest of this line is too long"
        notes.append(f"{size - end} bytes omitted after this, {onward}")
    if start:
        notes.append(f"{start} bytes omitted before line {offset}")
    return text + "".join(f"\n[{note}]" for note in notes)


def _start_of(file: FileIO, shown: str, offset: int) -> int:
    """Where line ``offset`` begins, or the end of the file when there are fewer."""
    file.seek(0)
    position, wanted = 0, offset - 1
    while wanted:
        chunk = file.read(_CHUNK)
        if not chunk:
            return position
        newlines = chunk.count(b"\n")
        if newlines < wanted:
            wanted -= newlines
            position += len(chunk)
            if position > MAX_SKIPPED:
                raise ToolError(f"line {offset} of {shown!r} lies beyond the first {MAX_SKIPPED} bytes: use grep")
            continue
        at = -1
        for _ in range(wanted):
            at = chunk.index(b"\n", at + 1)
        return position + at + 1
    return position


def _up_to(file: FileIO, count: int) -> bytes:
    """A raw file may hand out less than asked at a time."""
    parts = []
    while count > 0 and (part := file.read(count)):
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def _cut(data: bytes, limit: int) -> tuple[bytes, int]:
    """As many whole lines as fit, and how many; of a single line that does not fit, its beginning."""
    end, lines = 0, 0
    while lines < limit and end < len(data):
        newline = data.find(b"\n", end)
        line_end = len(data) if newline < 0 else newline + 1
        if line_end > MAX_BYTES:
            break
        end, lines = line_end, lines + 1
    if end == 0:
        return _whole_characters(data[:MAX_BYTES]), 1
    return data[:end], lines


def _whole_characters(data: bytes) -> bytes:
    """Without the first bytes of a character at the very end."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte < 0x80:  # noqa: PLR2004 - ASCII
            return data
        if byte >= 0xC0:  # noqa: PLR2004 - a first byte: how many follow is written in it
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4  # noqa: PLR2004
            return data if back >= length else data[:-back]
    return data


def _beyond(file: FileIO, shown: str, offset: int) -> ToolError:
    file.seek(0)
    lines, last = 0, b"\n"
    while chunk := file.read(_CHUNK):
        lines += chunk.count(b"\n")
        last = chunk[-1:]
    lines += last != b"\n"
    return ToolError(f"offset = {offset} is beyond the end: {shown!r} has {lines} lines")
