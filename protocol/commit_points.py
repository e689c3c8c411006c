"""The moments everything else relies on, by name, so that a test can strike exactly there."""

from __future__ import annotations

from typing import Literal, Protocol

CommitPoint = Literal[
    "accept.before",
    "accept.after",
    "terminal.before",
    "terminal.after",
    "merge.before",
    "merge.after",
]


class CommitHook(Protocol):
    """Called at each commit point; production passes none."""

    def __call__(self, point: CommitPoint, /) -> None:
        """Do nothing, or strike."""
