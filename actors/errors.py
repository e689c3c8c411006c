"""What a host may have to catch."""

from __future__ import annotations


class UnknownRunError(LookupError):
    """No run or session of that name is yours to act on; a stranger's answers alike."""


class SessionClosedError(RuntimeError):
    """The session is closed, or closing."""


class SessionBusy(RuntimeError):  # noqa: N818 - the name hosts write, fixed by the public API
    """The session is open in another runtime; ``holder`` is its incarnation."""

    def __init__(self, session_key: str, holder: str) -> None:
        super().__init__(f"session {session_key} is held by host {holder}: close it there first")
        self.holder = holder


class NotSentError(RuntimeError):
    """Nothing was said to the session: the send policy is against it, or it cannot listen; the message says which."""


class SteerError(RuntimeError):
    """The run cannot be steered now; the message says why."""
