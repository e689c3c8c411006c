"""What was said in a session: told by payloads at once, by the harness's transcript in full, and kept once."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from understudy.gateway.harness import claude_code
from understudy.gateway.harness.sighting import key
from understudy.persistence.ingest import parse_line
from understudy.persistence.operations import AppendTurns

if TYPE_CHECKING:
    from collections.abc import Callable

    from understudy.gateway.harness.sighting import Harness, Sighting
    from understudy.persistence import Ledger, SessionRecord
    from understudy.protocol import SessionKey
    from understudy.protocol.model import Role, Turn

# Sessions of which is remembered what their files will say again, and how much of each.
_MOST_SESSIONS = 1_000
_MOST_AHEAD = 8


class Words:
    """Takes in what was said. Not safe to use from several threads at once."""

    def __init__(self, store: Ledger, wall_ms: Callable[[], int]) -> None:
        self._store = store
        self._wall_ms = wall_ms
        self._ahead: dict[SessionKey, list[tuple[Role, str]]] = {}
        self._prompts: dict[SessionKey, str] = {}

    def take_in(self, sighting: Sighting, record: SessionRecord, *, final: bool) -> None:
        """What a transcript has gained, and what a payload tells before it stands there."""
        read = self.ingest(sighting.transcript, record, sighting.harness, final=final)
        if sighting.what == "answered":
            self._prompts.pop(record.session_key, None)  # whatever is asked now is asked anew
        turn = sighting.said
        if turn is None or self._is_there(record.session_key, turn, read=read):
            return
        self._store.transaction(AppendTurns(record.session_key, self._wall_ms(), (turn,))).result()
        if sighting.transcript is not None:
            waiting = self._ahead.pop(record.session_key, [])
            self._ahead[record.session_key] = [*waiting, _said(turn)][-_MOST_AHEAD:]
            _forget(self._ahead)

    def ingest(self, transcript: str | None, record: SessionRecord, harness: Harness, *, final: bool = False) -> bool:
        """Take in what a transcript file has gained; False where there is none to be read."""
        if transcript is None:
            return False
        parse = parse_line
        if harness == claude_code.HARNESS:
            parse = partial(claude_code.parse_line, told=partial(self._has_come_back, record.root_session_key))
        with suppress(OSError, ValueError):
            self._store.ingest(transcript, record.session_key, parse=self._fresh(parse, record), final=final)
            return True
        return False

    def last_of_assistant(self, session: SessionKey) -> str | None:
        """Its last words, as they are stored, if nobody has spoken since."""
        last = self._store.transcripts.last(session)
        return last.turn.text if last is not None and last.turn.role == "assistant" else None

    def _is_there(self, session: SessionKey, turn: Turn, *, read: bool) -> bool:
        if turn.role == "assistant":
            return self.last_of_assistant(session) == self._store.redactor.text(turn.text)
        # A prompt that comes after its own line in the file; if it was asked anew, the file will say it again.
        return read and self._prompts.get(session) == turn.text.strip()

    def _has_come_back(self, root: SessionKey, agent: str) -> bool:
        """Whether a sub-agent has stopped: what it came back with was told its parent then."""
        record = self._store.sessions.get(key(*root.split(":"), "subagent", agent))
        return record is not None and record.completed_at is not None

    def _fresh(self, parse: Callable[[str], Turn | None], record: SessionRecord) -> Callable[[str], Turn | None]:
        """``parse``, except that turns which were told ahead of the file are passed over, each once."""
        session = record.session_key
        waiting = self._ahead.get(session)
        begins_with: tuple[Role, str] | None = None
        if waiting is None:
            # Perhaps an earlier host was told ahead: then it is the last that is stored, and the next in the file.
            last = self._store.transcripts.last(session)
            begins_with = None if last is None or last.turn.role == "tool" else _said(last.turn)
            self._ahead[session] = []  # by this one it was not
            _forget(self._ahead)

        def parsed(line: str) -> Turn | None:
            nonlocal begins_with
            with suppress(ValueError):
                turn = parse(line)
                if turn is None:
                    return None
                said, first, begins_with = _said(turn), begins_with, None
                if turn.role == "user":
                    self._prompts[session] = said[1]
                    _forget(self._prompts)
                if waiting is not None and said in waiting:
                    waiting.remove(said)
                    return None
                return None if said == first else turn
            return None

        return parsed


def _said(turn: Turn) -> tuple[Role, str]:
    return turn.role, turn.text.strip()


def _forget(known: dict[SessionKey, list[tuple[Role, str]]] | dict[SessionKey, str]) -> None:
    while len(known) > _MOST_SESSIONS:
        del known[next(iter(known))]
