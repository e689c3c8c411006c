"""Who is about to start a sub-agent: Claude Code names the parent of a nested one only when it is over."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from understudy.protocol import SessionKey

# Sessions whose delegations are remembered; those not heard of for longest are forgotten first.
_MOST_SESSIONS = 1_000


class Delegations:
    """Tool calls that have begun and whose sub-agent has not been seen yet, by the session a person talks to."""

    def __init__(self) -> None:
        self._open: dict[SessionKey, dict[str, SessionKey]] = {}

    def begin(self, root: SessionKey, caller: SessionKey, call: str) -> None:
        """A tool call is about to make a sub-agent."""
        calls = self._open.pop(root, {})
        calls[call] = caller
        self._open[root] = calls
        while len(self._open) > _MOST_SESSIONS:
            del self._open[next(iter(self._open))]

    def take(self, root: SessionKey) -> tuple[SessionKey | None, bool]:
        """A sub-agent has started: its parent as far as it can be told, and whether there is no other way.

        With calls of one caller open it is that caller's, whichever of them it belongs to. Otherwise the last that
        called is the best guess, until the end of the call tells.
        """
        calls = self._open.get(root)
        if not calls:
            return None, False
        callers = set(calls.values())
        call = next(reversed(calls))
        return calls.pop(call), len(callers) == 1

    def end(self, root: SessionKey, call: str | None) -> None:
        """The tool call is over."""
        if call is not None:
            self._open.get(root, {}).pop(call, None)

    def forget(self, root: SessionKey) -> None:
        """The session is over."""
        self._open.pop(root, None)
