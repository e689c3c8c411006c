"""What a child inherits of its parent's session: read from the store, put together without a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from understudy.persistence.transcripts import NEWEST
from understudy.protocol.inherited import render_inherited

if TYPE_CHECKING:
    from understudy.persistence import Ledger
    from understudy.protocol import RuntimeConfig, SessionKey, SpawnPacket


def inherited_block(store: Ledger, session_key: str, *, tail_chars: int, until: int | None = None) -> str | None:
    """The section for a child of this session, as of turn ``until`` or of now; None when there is nothing.

    Pure reads of what is committed: the same rows give the same text.
    """
    until = NEWEST if until is None else until
    session = store.sessions.get(session_key)
    if session is None:
        return None
    checkpoint = store.sessions.checkpoint(session_key, until=until)
    covered = 0 if checkpoint is None else checkpoint.last_turn_id
    clean = store.redactor.text
    tail = store.transcripts.tail(session_key, tail_chars, after=covered, until=until)
    title = session.title and clean(session.title)
    if checkpoint is None:
        return render_inherited(title=title, tail=tail)
    return render_inherited(
        title=title,
        digest=clean(checkpoint.digest),
        tail=tail,
        entities=[clean(entity) for entity in checkpoint.entities],
        constraints=[clean(constraint) for constraint in checkpoint.constraints],
    )


def inheriting(packet: SpawnPacket, store: Ledger, config: RuntimeConfig) -> SpawnPacket:
    """A packet that was stored, with what its child inherited: a row holds only up to which turn that was."""
    if packet.inherited_until is None:
        return packet
    text = inherited_block(store, packet.parent_session_key, tail_chars=config.tail_chars, until=packet.inherited_until)
    return packet.model_copy(update={"inherited_context": text})


class Legacy:
    """What the next child of a session inherits; put together once for all that are spawned between two commits."""

    __slots__ = ("_key", "_mark", "_store", "_tail_chars", "_text", "_version")

    def __init__(self, store: Ledger, key: SessionKey, tail_chars: int) -> None:
        self._store = store
        self._key = key
        self._tail_chars = tail_chars
        self._version = -1
        self._mark = (0, 0)
        self._text: str | None = None

    def now(self) -> tuple[int, str] | None:
        """The number of the last turn that is committed, and the text up to it; None where there is nothing."""
        version = self._store.version
        if version != self._version:
            # In this order: a commit between the two lines is noticed next time.
            mark = self._store.sessions.mark(self._key)
            if mark != self._mark:
                self._text = inherited_block(self._store, self._key, tail_chars=self._tail_chars, until=mark[0])
                self._mark = mark
            self._version = version
        return None if self._text is None else (self._mark[0], self._text)
