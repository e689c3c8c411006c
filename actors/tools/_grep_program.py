"""The program behind the grep tool; run as a script of its own, with the standard library alone.

A regular expression that a model wrote can take longer than the universe, and Python's engine holds the interpreter
while it runs: only another process can be stopped. What to do comes as JSON; the folder or file is an open
descriptor, and everything below it is opened from it without following symlinks, so there is no path to escape by.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import stat
import sys
from typing import TYPE_CHECKING, BinaryIO, TypedDict

if TYPE_CHECKING:
    from collections.abc import Iterator

_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_BINARY_PROBE = 8_192


class Order(TypedDict):
    """What the tool asks of this program."""

    descriptor: int
    shown: str
    pattern: str
    ignore_case: bool
    glob: str | None
    max_matches: int
    max_line: int
    max_file: int


def files(folder: int, prefix: str, glob: str | None) -> Iterator[tuple[str, int]]:
    """Every regular file below an open folder as (name, descriptor), sorted; hidden folders are passed over."""
    for name in sorted(os.listdir(folder)):
        try:
            mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
            if stat.S_ISDIR(mode) and not name.startswith("."):
                below = os.open(name, _OPEN | os.O_DIRECTORY, dir_fd=folder)
                try:
                    yield from files(below, f"{prefix}{name}/", glob)
                finally:
                    os.close(below)
            elif stat.S_ISREG(mode) and (glob is None or fnmatch.fnmatch(name, glob)):
                yield prefix + name, os.open(name, _OPEN, dir_fd=folder)
        except OSError:  # gone, forbidden, or a symlink by now
            continue


def matches(order: Order, file: BinaryIO, pattern: re.Pattern[str]) -> Iterator[str]:
    """``line number:text`` for each line that matches."""
    if b"\0" in file.read(_BINARY_PROBE):
        return
    file.seek(0)
    for count, raw in enumerate(file, 1):
        line = raw.decode("utf-8", "replace").rstrip("\r\n")
        match = pattern.search(line)
        if match is not None:
            yield f"{count}:{around(line, match.start(), order['max_line'])}"


def main() -> None:
    """Print one line a match, then what was left out."""
    order: Order = json.loads(sys.argv[1])
    try:
        pattern = re.compile(order["pattern"], re.IGNORECASE if order["ignore_case"] else 0)
    except (re.error, OverflowError, RecursionError) as error:
        sys.exit(f"pattern {order['pattern'][:80]!r} is not a regular expression: {error}")
    descriptor, found = order["descriptor"], iter([(order["shown"], order["descriptor"])])
    if stat.S_ISDIR(os.fstat(descriptor).st_mode):
        found = files(descriptor, "" if order["shown"] == "." else order["shown"].rstrip("/") + "/", order["glob"])
    shown = omitted = skipped = 0
    for name, number in found:
        with os.fdopen(number, "rb") as file:
            if os.fstat(number).st_size > order["max_file"]:
                skipped += 1
                continue
            for match in matches(order, file, pattern):
                if shown < order["max_matches"]:
                    shown += 1
                    say(f"{name}:{match}")
                else:
                    omitted += 1
    if omitted:
        say(f"[… {omitted} more matching lines omitted: narrow the pattern or the path]")
    if skipped:
        say(f"[{skipped} files over {order['max_file']} bytes were not searched]")
    if not shown:
        say("no match")


def around(line: str, at: int, limit: int) -> str:
    """The part of a long line where the match begins."""
    if len(line) <= limit:
        return line
    start = max(0, min(at - limit // 4, len(line) - limit))
    return f"{'…' if start else ''}{line[start : start + limit]}{'…' if start + limit < len(line) else ''}"


def say(line: str) -> None:
    """At once, so that a search that runs out of time has told what it found."""
    sys.stdout.buffer.write(line.encode("utf-8", "backslashreplace") + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
