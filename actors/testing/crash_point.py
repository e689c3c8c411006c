"""Strike at a named commit point: raise, hold it up, or kill the process."""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from understudy.protocol.commit_points import CommitPoint


class CrashPointError(Exception):
    """What a crash point raises when it was given nothing else."""


class CrashPoint:
    """A commit hook that does nothing until its point is reached for the ``hit``-th time, then strikes once.

    ``raise``: the error; ``delay``: holds the commit up until `release`; ``kill``: the process is gone as by
    ``kill -9``, without any Python code having a say.
    """

    def __init__(
        self,
        point: CommitPoint,
        action: Literal["raise", "delay", "kill"] = "raise",
        *,
        hit: int = 1,
        error: Exception | None = None,
    ) -> None:
        self.point = point
        self.action = action
        self.seen = 0
        """How often the point has been reached."""
        self.reached = threading.Event()
        """Set when it strikes."""
        self._hit = hit
        self._error = error or CrashPointError(f"struck at {point}")
        self._released = threading.Event()

    def __call__(self, point: CommitPoint, /) -> None:
        """The commit hook."""
        if point != self.point:
            return
        self.seen += 1
        if self.seen != self._hit:
            return
        self.reached.set()
        if self.action == "raise":
            raise self._error
        if self.action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        self._released.wait()

    def release(self) -> None:
        """Let a delayed commit go on."""
        self._released.set()
