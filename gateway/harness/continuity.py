"""From what harnesses tell to what their sub-agents inherit: sessions, lineage, transcripts, files."""

from __future__ import annotations

import os.path
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from understudy.actors.checkpoints import automatic
from understudy.actors.inheritance import inherited_block
from understudy.gateway.harness import claude_code
from understudy.gateway.harness.delegations import Delegations
from understudy.gateway.harness.words import Words
from understudy.persistence.operations import (
    AppendTurns,
    CompleteSession,
    OpenSession,
    SaveContext,
    SetLineage,
)
from understudy.protocol import SessionKey, WorkingContext
from understudy.protocol.framing import frame, in_a_line
from understudy.protocol.model import Turn
from understudy.protocol.truncate import truncate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from understudy.gateway.harness.sighting import Sighting
    from understudy.persistence import Ledger, SessionRecord
    from understudy.persistence.operations import Operation
    from understudy.protocol import Receipt, RuntimeConfig

Lineage = Literal["exact", "inferred"]
# A chain of parents that is longer than this is a loop.
_DEEPEST = 100
_CHARS_PER_TOKEN = 4
_MOST_SESSIONS = 1_000


@dataclass(frozen=True, slots=True)
class Reaction:
    """What came of a sighting."""

    session: SessionKey
    parent: SessionKey | None = None
    lineage: Lineage | None = None
    """``inferred``: the best guess, which a later payload may put right."""
    context: str | None = None
    """What the sub-agent inherits, to be put before it as data; only when one has just begun."""


class NotTheirsError(LookupError):
    """The session is another agent's."""


class Continuity:
    """Keeps sessions of harnesses in a store, new ones as ``agent_id``'s. Blocks; safe to use from several threads.

    ``bound`` keeps it to that agent: a sighting that concerns another one's session raises `NotTheirsError`.
    """

    def __init__(
        self,
        store: Ledger,
        *,
        wall_ms: Callable[[], int],
        config: RuntimeConfig,
        agent_id: str = "default",
        bound: bool = False,
    ) -> None:
        self._store = store
        self._wall_ms = wall_ms
        self._config = config
        self._agent_id = agent_id
        self._bound = bound
        self._delegations = Delegations()
        self._words = Words(store, wall_ms)
        self._caught_up: dict[SessionKey, None] = {}
        # One at a time: what a sub-agent inherits is what was told before it.
        self._lock = threading.Lock()

    def observe(self, sighting: Sighting, *, parent: SessionKey | None = None) -> Reaction:
        """Take a sighting in. A ``parent`` that the caller knows counts before everything else."""
        with self._lock:
            self._keep_to_the_agent(sighting, parent)
            record = self._opened(sighting, parent)
            if self._bound and record.agent_id != self._agent_id:
                raise NotTheirsError(record.session_key)  # somebody was quicker
            self._catch_up(sighting)
            self._take_in(sighting, record)
            context = self._inheritance(sighting, record) if sighting.what == "opened" else None
            lineage: Lineage = "inferred" if record.parent_inferred else "exact"
            above = record.parent_session_key
            return Reaction(record.session_key, above, None if above is None else lineage, context)

    def _keep_to_the_agent(self, sighting: Sighting, parent: SessionKey | None) -> None:
        if not self._bound:
            return
        if sighting.agent_id not in {None, self._agent_id}:
            raise NotTheirsError(sighting.session)
        for key in {sighting.session, sighting.root, sighting.parent, sighting.child, parent} - {None}:
            record = self._store.sessions.get(str(key))
            if record is not None and record.agent_id != self._agent_id:
                raise NotTheirsError(key)

    # -- sessions and lineage -------------------------------------------------------------------------

    def _opened(self, sighting: Sighting, explicit: SessionKey | None) -> SessionRecord:
        """The session it happened in, with its parent."""
        known = self._store.sessions.get(sighting.session)
        if known is not None:
            better = explicit or sighting.parent
            if better is not None and (better != known.parent_session_key or known.parent_inferred):
                self._set_parent(sighting.session, better)
                known = self._store.sessions.get(sighting.session) or known
            return known
        parent, exact = self._parent(sighting, explicit)
        above = None if parent is None else self._ensured(parent, sighting)
        opened: list[Operation] = [
            OpenSession(
                sighting.session,
                at=self._wall_ms(),
                agent_id=above.agent_id if above is not None else sighting.agent_id or self._agent_id,
                visibility="isolated" if above is None else above.visibility,
                cwd=sighting.project,
                harness=sighting.harness,
                project=sighting.project,
                title=sighting.title,
            )
        ]
        if above is not None:
            opened.append(_below(sighting.session, above, inferred=not exact))
        self._write(*opened)
        record = self._store.sessions.get(sighting.session)
        assert record is not None
        return record

    def _parent(self, sighting: Sighting, explicit: SessionKey | None) -> tuple[SessionKey | None, bool]:
        """Whose sub-agent a new session is, and whether that is certain."""
        told = explicit or sighting.parent
        if told is not None:
            return told, True
        if not sighting.in_sub_agent:
            return None, True
        caller, exact = self._delegations.take(sighting.root)
        if caller is not None:
            return caller, exact
        if sighting.harness == claude_code.HARNESS:
            return sighting.root, False  # its session for certain; but perhaps by another of its sub-agents
        recent = self._store.sessions.most_recent(
            project=sighting.project or "",
            harness=sighting.harness,
            agent_id=sighting.agent_id or self._agent_id,
            other_than=sighting.session,
        )
        return None if recent is None else recent.session_key, False

    def _ensured(self, key: SessionKey, sighting: Sighting) -> SessionRecord:
        """A parent that has not been heard of is there all the same."""
        self._write(
            OpenSession(
                key,
                at=self._wall_ms(),
                agent_id=sighting.agent_id or self._agent_id,
                harness=sighting.harness,
                cwd=sighting.project,
                project=sighting.project,
            )
        )
        record = self._store.sessions.get(key)
        assert record is not None
        return record

    def _set_parent(self, session: SessionKey, parent: SessionKey) -> None:
        above = self._store.sessions.get(parent)
        if above is None or self._is_below(above, session):
            return
        before = self._store.sessions.get(session)
        self._write(_below(session, above, inferred=False))
        record = self._store.sessions.get(session)
        if record is not None and record.completed_at is not None and before is not None:
            self._merge_files(record)
            if before.parent_session_key != parent:
                self._tell_parent(record)  # it went to the wrong one before

    def _is_below(self, record: SessionRecord, session: SessionKey) -> bool:
        """Whether ``record`` descends from ``session``: whoever says so is wrong, or lies."""
        above: SessionRecord | None = record
        for _ in range(_DEEPEST):
            if above is None:
                return False
            if above.session_key == session:
                return True
            above = None if above.parent_session_key is None else self._store.sessions.get(above.parent_session_key)
        return True

    def _catch_up(self, sighting: Sighting) -> None:
        """The sub-agents of a session that began and perhaps ended while nobody listened; looked for once."""
        if sighting.harness != claude_code.HARNESS or sighting.session in self._caught_up:
            return
        self._caught_up[sighting.session] = None
        while len(self._caught_up) > _MOST_SESSIONS:
            del self._caught_up[next(iter(self._caught_up))]
        for missed in claude_code.written_down(sighting):
            self._words.take_in(missed, self._opened(missed, None), final=False)

    # -- what happened in it --------------------------------------------------------------------------

    def _take_in(self, sighting: Sighting, record: SessionRecord) -> None:
        what, root = sighting.what, sighting.root
        if sighting.files:
            self._touch(record, sighting.files)
        if what == "delegating" and sighting.call is not None:
            self._delegations.begin(root, sighting.session, sighting.call)
        if what == "delegated":
            self._delegations.end(root, sighting.call)
            if sighting.child is not None and self._store.sessions.get(sighting.child) is not None:
                self._set_parent(sighting.child, sighting.session)
        final = what == "closed"
        before = self._words.last_of_assistant(record.session_key)
        self._words.take_in(sighting, record, final=final)
        if what == "compacting":
            self._checkpoint(record.session_key, "pre_compaction")
        if final:
            self._close(sighting, record, before)

    def _close(self, sighting: Sighting, record: SessionRecord, before: str | None) -> None:
        """It is over, or once more: one that was resumed has other last words than ``before``."""
        self._checkpoint(record.session_key, "session_end")
        self._merge_files(record)
        if record.completed_at is None or self._words.last_of_assistant(record.session_key) != before:
            self._tell_parent(record)
        self._write(CompleteSession(record.session_key, self._wall_ms()))
        if not sighting.in_sub_agent:
            self._delegations.forget(sighting.root)

    def _tell_parent(self, record: SessionRecord) -> None:
        """What a sub-agent came back with, as a note in its parent's session."""
        said = self._words.last_of_assistant(record.session_key)
        if said is None or record.parent_session_key is None:
            return
        prefix = self._config.result_tag_prefix
        words = frame(truncate(said, self._config.max_result_tokens * _CHARS_PER_TOKEN), tag=prefix)
        note = f"[{prefix}: {in_a_line(record.title or 'sub-agent')}]\n\n{words}\n---\nSession: {record.session_key}"
        self._write(AppendTurns(record.parent_session_key, self._wall_ms(), (Turn("user", note),)))

    def _checkpoint(self, session: SessionKey, trigger: Literal["pre_compaction", "session_end"]) -> None:
        checkpoint = automatic(self._store, session, trigger, at=self._wall_ms())
        if checkpoint is not None:
            self._write(checkpoint)

    # -- files ----------------------------------------------------------------------------------------

    def _touch(self, record: SessionRecord, files: Iterable[Receipt]) -> None:
        """Only what is inside the project: a path from elsewhere says nothing about it."""
        root = os.path.realpath(record.cwd or "/")
        paths = [os.path.realpath(Path(root, file.path)) for file in files if "\x00" not in file.path]
        self._remember(record, [path for path in paths if path == root or path.startswith(root.rstrip("/") + "/")])

    def _merge_files(self, record: SessionRecord) -> None:
        """What a sub-agent touched, its parent has in view from now on."""
        context = self._store.sessions.working_context(record.session_key)
        parent = None if record.parent_session_key is None else self._store.sessions.get(record.parent_session_key)
        if context is not None and parent is not None:
            self._remember(parent, list(reversed(context.recent_files)))

    def _remember(self, record: SessionRecord, paths: list[str]) -> None:
        before = self._store.sessions.working_context(record.session_key)
        if before is None:
            before = WorkingContext(project_dir=record.cwd, max_files=self._config.recent_files_max)
        after = before.merge(paths)
        if after is not before:
            self._write(SaveContext(record.session_key, self._wall_ms(), after))

    # -- what is handed down --------------------------------------------------------------------------

    def _inheritance(self, sighting: Sighting, record: SessionRecord) -> str | None:
        if sighting.forgetful:
            return self._reminder(record)
        if record.parent_session_key is None or not self._config.inherit_context:
            return None
        root = self._store.sessions.get(record.root_session_key)
        if root is not None:
            self._words.ingest(sighting.root_transcript, root, sighting.harness)  # up to the very turn that delegates
        return inherited_block(self._store, record.parent_session_key, tail_chars=self._config.tail_chars)

    def _reminder(self, record: SessionRecord) -> str | None:
        """What a compaction leaves out of a summary: the files in view, those of its sub-agents too."""
        context = self._store.sessions.working_context(record.session_key)
        return None if context is None else context.render()

    def _write(self, *operations: Operation) -> None:
        self._store.transaction(*operations).result()


def _below(session: SessionKey, above: SessionRecord, *, inferred: bool) -> SetLineage:
    return SetLineage(session, above.session_key, above.root_session_key, above.depth + 1, inferred)
