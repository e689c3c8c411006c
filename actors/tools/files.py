"""The built-in file tools, confined to the run's cwd and workspace."""

from __future__ import annotations

import os
import secrets
import stat
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from understudy.actors.tools._confine import Place, explained, place
from understudy.actors.tools._reading import MAX_LINES, read_lines
from understudy.actors.tools.context import ToolContext  # noqa: TC001 - read at run time by @tool
from understudy.actors.tools.outcome import ToolError, ToolOutcome
from understudy.actors.tools.tool import tool
from understudy.protocol import Receipt

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_WRITE = 10 * 1024 * 1024
"""The largest file that is written or edited, in bytes; it is held in memory whole."""

SERVERS_FILE = ".mcp.json"
"""Where a sub-agent's MCP servers are named."""

MAX_ENTRIES = 1_000
"""The most names one listing shows."""

# Counting goes on beyond what is shown, but not for ever.
_MAX_COUNTED = 50_000

# A model's tool calls run in parallel: two edits of one file must not each start from the same text. The number is
# many more than there are threads; two files that share a lock merely wait for each other.
_LOCKS = tuple(threading.Lock() for _ in range(64))

PathArgument = Annotated[str, Field(description="Relative to the working directory, or absolute inside it.")]


# paths=(): these tools hand out their own receipts, with the path that was really opened.
@tool(group="files:read", paths=())
def file_read(
    path: PathArgument,
    context: ToolContext,
    offset: Annotated[int, Field(ge=1, description="First line to read.")] = 1,
    limit: Annotated[int, Field(ge=1, le=MAX_LINES, description="How many lines at most.")] = MAX_LINES,
) -> ToolOutcome:
    """Read a text file, or some of its lines."""
    with place(context, path) as found:
        with os.fdopen(found.open_file(), "rb", buffering=0) as file:
            text = read_lines(file, shown=path, offset=offset, limit=limit)
        return ToolOutcome(text, (Receipt(found.path, "read"),))


@tool(group="files:write", paths=(), mode="write")
def file_write(
    path: PathArgument,
    content: Annotated[str, Field(description="The whole new content.")],
    context: ToolContext,
) -> ToolOutcome:
    """Create a text file or replace its whole content, all at once. Missing folders are made."""
    data = _encoded(content, "content")
    with place(context, path, make_folders=True) as found, _lock(found):
        before = found.status()
        if before is not None:
            found.must_be_regular(before)
        _replace(found, data, before)
        done = "replaced" if before else "created"
        return ToolOutcome(f"{done} {path!r}: {len(data)} bytes", (Receipt(found.path, "write"),))


@tool(group="files:write", paths=(), mode="edit")
def file_edit(
    path: PathArgument,
    old_text: Annotated[str, Field(min_length=1, description="Exact text that occurs once, whitespace included.")],
    new_text: Annotated[str, Field(description="What to put in its place.")],
    context: ToolContext,
) -> ToolOutcome:
    """Replace one exact piece of a text file. The piece must occur exactly once."""
    old, new = _encoded(old_text, "old_text"), _encoded(new_text, "new_text")
    if old == new:
        raise ToolError("old_text and new_text are the same: nothing would change")
    with place(context, path) as found, _lock(found):
        with os.fdopen(found.open_file(), "rb", buffering=0) as file:
            before = os.fstat(file.fileno())
            if before.st_size > MAX_WRITE:
                raise ToolError(f"{path!r} has {before.st_size} bytes: at most {MAX_WRITE} can be edited")
            data = file.read(MAX_WRITE + 1)
        at = data.find(old)
        if at < 0:
            raise ToolError(f"old_text does not occur in {path!r}: read the file and copy the text exactly")
        if data.find(old, at + 1) >= 0:
            raise ToolError(f"old_text occurs more than once in {path!r}: add lines around it until it is unique")
        edited = data[:at] + new + data[at + len(old) :]
        if len(edited) > MAX_WRITE:
            raise ToolError(f"{path!r} would have {len(edited)} bytes: at most {MAX_WRITE} are allowed")
        _replace(found, edited, before)
        line = data.count(b"\n", 0, at) + 1
        return ToolOutcome(f"edited {path!r} at line {line}", (Receipt(found.path, "edit"),))


@tool(name="list", group="files:read", paths=())
def list_files(
    context: ToolContext,
    path: PathArgument = ".",
    depth: Annotated[int, Field(ge=1, le=10, description="How many levels down.")] = 1,
) -> str:
    """List a folder, folders first with a trailing slash; symlinks are marked with @ and not followed."""
    with place(context, path) as found:
        shown: list[str] = []
        omitted = 0
        for entry in _entries(found.open_folder(), "", depth):
            if len(shown) < MAX_ENTRIES:
                shown.append(entry)
            else:
                omitted += 1
                if omitted == _MAX_COUNTED:
                    break
    if not shown:
        return f"{path!r} is empty"
    if omitted:
        at_least = "at least " if omitted == _MAX_COUNTED else ""
        shown.append(f"[… {at_least}{omitted} more omitted: list a folder further down]")
    return "\n".join(shown)


def _entries(folder: int, prefix: str, depth: int) -> Iterator[str]:
    """The names below an open folder, which is closed at the end; sub-folders are opened from it, never by path."""
    try:
        with os.scandir(folder) as scan:
            found = sorted((not entry.is_dir(follow_symlinks=False), entry.name, entry.is_symlink()) for entry in scan)
        for is_file, name, is_link in found:
            mark = "@" if is_link else "" if is_file else "/"
            yield f"{prefix}{name}{mark}"
            if not is_file and depth > 1:
                with suppress(OSError):  # gone, forbidden, or a symlink by now: it stays a name in the list
                    below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
                    yield from _entries(below, f"{prefix}{name}/", depth - 1)
    finally:
        os.close(folder)


def _encoded(text: str, argument: str) -> bytes:
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise ToolError(f"{argument} is not valid text: character {error.start} is a lone surrogate") from None
    if len(data) > MAX_WRITE:
        raise ToolError(f"{argument} has {len(data)} bytes: at most {MAX_WRITE} are allowed")
    return data


def _lock(found: Place) -> threading.Lock:
    return _LOCKS[hash(found.path) % len(_LOCKS)]


def _replace(found: Place, data: bytes, before: os.stat_result | None) -> None:
    """Put ``data`` there in one step: a reader sees the old file or the new one, and a crash leaves either."""
    if found.name.casefold() == SERVERS_FILE:
        # Whoever may write it may run programs, which files:write does not mean.
        raise ToolError(f"{found.shown!r} is not written by tools: it names programs that start with a sub-agent")
    temporary = f".understudy-{secrets.token_hex(8)}.tmp"
    with explained(found.shown):
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(temporary, flags, 0o666, dir_fd=found.folder)
        try:
            with os.fdopen(descriptor, "wb") as file:
                if before is not None:
                    os.fchmod(file.fileno(), stat.S_IMODE(before.st_mode) & 0o777)
                file.write(data)
            _unchanged(found, before)
            # Replaces a symlink or hard link swapped in here, and never writes through it.
            os.rename(temporary, found.name, src_dir_fd=found.folder, dst_dir_fd=found.folder)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=found.folder)
            raise


def _unchanged(found: Place, before: os.stat_result | None) -> None:
    """Refuse to bury what somebody else wrote since ``before``."""
    now = found.status()

    def version(seen: os.stat_result | None) -> tuple[int, ...] | None:
        return seen and (seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns)

    if version(now) != version(before):
        raise ToolError(f"{found.shown!r} was changed by somebody else meanwhile: read it again")
