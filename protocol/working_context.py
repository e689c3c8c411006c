"""What a parent keeps in view: a ring buffer of recent files, and its project."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

DEFAULT_RECENT_FILES = 10


def unfit(path: str) -> bool:
    """Blank, or with a character that could break out of the one line the path gets in a prompt."""
    # Zl and Zp (line and paragraph separator) break lines for str.splitlines and for many models.
    # Cs is a lone surrogate: it cannot be stored or sent as UTF-8.
    return not path.strip() or any(unicodedata.category(c) in {"Cc", "Cs", "Zl", "Zp"} for c in path)


@dataclass(frozen=True, slots=True)
class WorkingContext:
    """Recent files, most recent first and unique, and the project directory. Immutable.

    Example:
        >>> context = WorkingContext(project_dir="/p").add_recent_file("/p/a").add_recent_file("/p/b")
        >>> context.recent_files
        ('/p/b', '/p/a')
    """

    recent_files: tuple[str, ...] = ()
    project_dir: str | None = None
    max_files: int = DEFAULT_RECENT_FILES

    def __post_init__(self) -> None:
        if self.max_files < 1:
            raise ValueError(f"max_files = {self.max_files} is not allowed: use 1 or more")
        if len(self.recent_files) > self.max_files or len(set(self.recent_files)) != len(self.recent_files):
            raise ValueError(f"recent_files must be unique and at most {self.max_files}, got {list(self.recent_files)}")

    def add_recent_file(self, path: str) -> WorkingContext:
        """This context with ``path`` at the head; the same instance when nothing changes."""
        if unfit(path) or self.recent_files[:1] == (path,):
            return self
        others = (known for known in self.recent_files if known != path)
        return replace(self, recent_files=(path, *others)[: self.max_files])

    def merge(self, touched: Iterable[str]) -> WorkingContext:
        """This context after ``touched``, given in touch order: the last one ends at the head."""
        context = self
        for path in touched:
            context = context.add_recent_file(path)
        return context

    def render(self) -> str | None:
        """The ``[working-context]`` block for the next model call, or None when there is nothing to say."""
        if not self.recent_files:
            return None
        lines = ["[working-context]"]
        if self.project_dir is not None:
            lines.append(f"project_dir: {self.project_dir}")
        lines.append("recent_files:")
        lines += [f"  - {path}" for path in self.recent_files]
        return "\n".join(lines)
