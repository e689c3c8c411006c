"""Paths a model wrote, opened without ever leaving the roots, whatever happens to the file system meanwhile.

Checking a path and then opening it leaves a moment in between, and a symlink swapped in during that moment leads
anywhere. So nothing is checked first: a path is walked one name at a time, each opened relative to the directory
held open before it and never through a symlink. A link is read as text and walked in the same way, so one that stays
inside works and one that leads outside is refused. What is then read or replaced is what was opened.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from understudy.actors.tools.outcome import ToolError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from understudy.actors.tools.context import ToolContext

# Linux has O_PATH: a directory without read permission can be passed through, as the kernel itself does.
_THROUGH = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | getattr(os, "O_PATH", os.O_RDONLY)
# O_NONBLOCK: a FIFO that takes a file's place after it was looked at must not hang the open.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

# As Linux's own limit; a path that needs more goes in circles.
_MAX_LINKS = 40
# Each name on the way holds a file descriptor.
_MAX_DEPTH = 100
_MAX_LENGTH = 4096

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFLNK: "a symlink",
}


@dataclass(frozen=True, slots=True)
class _Root:
    """A folder that tools may touch, as the host wrote it and as it really is."""

    given: tuple[str, ...]
    real: tuple[str, ...]

    @classmethod
    def of(cls, path: str) -> _Root:
        return cls(_names(str(Path(path).absolute())), _names(os.path.realpath(path)))

    def inside(self, names: tuple[str, ...]) -> tuple[str, ...] | None:
        """What of an absolute path is left below this root."""
        for prefix in (self.real, self.given):
            if names[: len(prefix)] == prefix:
                return names[len(prefix) :]
        return None


@dataclass(slots=True)
class Place:
    """A name in a directory that is held open: all that is needed to read, create or replace it safely."""

    folder: int
    """The directory, as a file descriptor; closed with the walk that found it."""
    name: str
    """The last name, ``.`` for the directory itself; never a symlink at the time it was looked at."""
    path: str
    """Canonical and absolute, for receipts."""
    shown: str
    """As the model wrote it, for messages."""

    def status(self) -> os.stat_result | None:
        """What is there, or None."""
        try:
            return os.stat(self.name, dir_fd=self.folder, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def open_file(self) -> int:
        """A descriptor of the regular file; anything else is refused, and nothing is waited for."""
        seen = self.status()
        if seen is None:
            raise ToolError(f"{self.shown!r} does not exist")
        # Before opening: the mere opening of a device can do something.
        self.must_be_regular(seen)
        with explained(self.shown):
            descriptor = os.open(self.name, _FILE, dir_fd=self.folder)
        try:
            self.must_be_regular(os.fstat(descriptor))
        except ToolError:
            os.close(descriptor)
            raise
        return descriptor

    def must_be_regular(self, seen: os.stat_result) -> None:
        """Refuse what is not a file."""
        if not stat.S_ISREG(seen.st_mode):
            kind = _KINDS.get(stat.S_IFMT(seen.st_mode), "not a file")
            raise ToolError(f"{self.shown!r} is {kind}: only regular files are read and written")

    def open_folder(self) -> int:
        """A descriptor of the directory that can be listed."""
        with explained(self.shown):
            return os.open(self.name, _FOLDER, dir_fd=self.folder)


@contextlib.contextmanager
def place(context: ToolContext, path: str, *, make_folders: bool = False) -> Iterator[Place]:
    """Where ``path`` leads, below the run's cwd or workspace; with ``make_folders`` missing parents are made."""
    if not path or len(path) > _MAX_LENGTH or "\0" in path:
        raise ToolError(f"path {path[:80]!r} is not allowed: use 1 to {_MAX_LENGTH} characters without NUL")
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        raise ToolError(f"path {path[:80]!r} is not allowed: it cannot be encoded as UTF-8") from None
    with contextlib.closing(_Walk(context, path, make_folders=make_folders)) as walk:
        yield walk.go()


class _Walk:
    """One path on its way down; holds every directory from the root open, so that ``..`` is only a step back."""

    def __init__(self, context: ToolContext, path: str, *, make_folders: bool) -> None:
        self._roots = tuple(dict.fromkeys((_Root.of(context.cwd), _Root.of(context.workspace_dir))))
        self._shown = path
        self._make_folders = make_folders
        self._held: list[int] = []
        self._passed: list[str] = []
        self._root = self._roots[0]
        self._ahead: deque[str] = deque()
        self._links = 0
        if path.startswith("/"):
            self._start_at(_names(path))
        else:
            self._start_at((*self._root.real, *_names(path)))

    def close(self) -> None:
        """Let every directory go."""
        while self._held:
            os.close(self._held.pop())

    def go(self) -> Place:
        """Walk to the last name."""
        while self._ahead:
            name = self._ahead.popleft()
            if name == "..":
                self._step_back()
            elif target := self._link(name):
                self._follow(target)
            elif not self._ahead:
                return self._found(name)
            else:
                self._enter(name)
        return self._found(".")

    def _start_at(self, names: tuple[str, ...]) -> None:
        """Begin again at whichever root holds this absolute path."""
        for root in self._roots:
            below = root.inside(names)
            if below is not None:
                self.close()
                self._passed.clear()
                self._root = root
                with explained("/" + "/".join(root.real)):
                    self._held.append(os.open("/" + "/".join(root.real), _THROUGH))
                self._ahead = deque(below)
                return
        raise self._outside()

    def _outside(self) -> ToolError:
        allowed = " or ".join("/" + "/".join(root.given) for root in self._roots)
        return ToolError(f"path {self._shown!r} leads outside: allowed is what lies below {allowed}")

    def _step_back(self) -> None:
        if len(self._held) > 1:
            os.close(self._held.pop())
            self._passed.pop()
        else:  # above this root, but perhaps inside the other one
            self._start_at((*self._root.real[:-1], *self._ahead))

    def _link(self, name: str) -> str | None:
        """The text of a symlink, or None for anything else, a missing name included."""
        try:
            return os.readlink(name, dir_fd=self._held[-1])
        except OSError as error:
            if error.errno in {errno.EINVAL, errno.ENOENT}:
                return None
            with explained(self._shown):
                raise

    def _follow(self, target: str) -> None:
        self._links += 1
        if self._links > _MAX_LINKS:
            raise ToolError(f"path {self._shown!r} goes through more than {_MAX_LINKS} symlinks")
        if target.startswith("/"):
            self._start_at((*_names(target), *self._ahead))
        else:
            self._ahead.extendleft(reversed(_names(target)))

    def _enter(self, name: str) -> None:
        if len(self._held) > _MAX_DEPTH:
            raise ToolError(f"path {self._shown!r} is more than {_MAX_DEPTH} folders deep")
        with explained(self._shown):
            try:
                opened = os.open(name, _THROUGH, dir_fd=self._held[-1])
            except FileNotFoundError:
                if not self._make_folders:
                    raise
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, dir_fd=self._held[-1])
                opened = os.open(name, _THROUGH, dir_fd=self._held[-1])
        self._held.append(opened)
        self._passed.append(name)

    def _found(self, name: str) -> Place:
        names = [*self._root.real, *self._passed, *([] if name == "." else [name])]
        return Place(self._held[-1], name, "/" + "/".join(names), self._shown)


def _names(path: str) -> tuple[str, ...]:
    return tuple(name for name in path.split("/") if name not in {"", "."})


@contextlib.contextmanager
def explained(shown: str) -> Iterator[None]:
    """What the file system refuses, as one sentence."""
    try:
        yield
    except FileNotFoundError:
        raise ToolError(f"{shown!r} does not exist") from None
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.EMLINK}:  # it became a symlink between two of our steps
            raise ToolError(f"{shown!r} changed while it was opened: try again") from None
        raise ToolError(f"{shown!r}: {(error.strerror or str(error)).lower()}") from None
