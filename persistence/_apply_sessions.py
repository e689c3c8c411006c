"""Carrying out what concerns hosts, sessions, checkpoints and the books of ingestion."""

from __future__ import annotations

import json
from operator import attrgetter
from typing import TYPE_CHECKING

from understudy.persistence.errors import IngestConflictError
from understudy.persistence.operations import CHECKPOINTS_KEPT

if TYPE_CHECKING:
    from understudy.persistence import operations as op
    from understudy.persistence._round import Item, Round


# Columns that are copied as they are.
_OF_SESSION = attrgetter(
    *("session_key", "agent_id", "visibility", "parent_session_key", "depth", "runner", "workspace_dir"),
    *("cwd", "harness", "project", "at", "at"),
)


def host_started(work: Round, items: list[Item[op.HostStarted]]) -> None:
    """A new incarnation; its name is its own, so a second one is an error."""
    for item in items:
        host = item.operation
        work.one(
            "INSERT INTO hosts (incarnation, pid, process_started, started_at, heartbeat_at) VALUES (?, ?, ?, ?, ?)",
            (host.host, host.pid, host.process_started, host.at, host.at),
        )


def host_heartbeat(work: Round, items: list[Item[op.HostHeartbeat]]) -> None:
    """Answers whether the host still counts as alive."""
    for item in items:
        host = item.operation
        changed = work.one(
            "UPDATE hosts SET heartbeat_at = max(heartbeat_at, ?) WHERE incarnation = ? AND stopped_at IS NULL",
            (host.at, host.host),
        )
        item.answer = changed > 0


def host_stopped(work: Round, items: list[Item[op.HostStopped]]) -> None:
    """The first one says when; its sessions are free at once."""
    for item in items:
        host = item.operation
        changed = work.one(
            "UPDATE hosts SET stopped_at = ? WHERE incarnation = ? AND stopped_at IS NULL", (host.at, host.host)
        )
        work.one("UPDATE sessions SET holder = NULL WHERE holder = ?", (host.host,))
        item.answer = changed > 0


def open_session(work: Round, items: list[Item[op.OpenSession]]) -> None:
    """New sessions; one that exists is left as it is."""
    text = work.redactor.text
    work.bulk(
        """
        INSERT INTO sessions (session_key, agent_id, visibility, parent_session_key, depth, runner, workspace_dir,
                              cwd, harness, project, created_at, updated_at, root_session_key, title)
        VALUES {rows} ON CONFLICT (session_key) DO NOTHING
        """,
        "(?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
        [
            (*_OF_SESSION(new), new.root_session_key or new.session_key, new.title and text(new.title))
            for new in [item.operation for item in items]
        ],
    )


def claim_session(work: Round, items: list[Item[op.ClaimSession]]) -> None:
    """Compare and set: the writer's transaction holds the file's write lock, so no two hosts can both win."""
    for item in items:
        claim = item.operation
        taken = work.one(
            """
            UPDATE sessions SET holder = ?1 WHERE session_key = ?2 AND (
                holder IS NULL OR holder = ?1 OR NOT EXISTS (
                    SELECT 1 FROM hosts WHERE incarnation = holder
                    AND stopped_at IS NULL AND heartbeat_at >= ?3))
            """,
            (claim.host, claim.session_key, claim.stale_before),
        )
        if not taken:
            found = work.cursor.execute(
                "SELECT holder FROM sessions WHERE session_key = ?", (claim.session_key,)
            ).fetchone()
            if found is None:
                raise LookupError(f"there is no session {claim.session_key} to claim: open it first")
            item.answer = found[0]


def release_session(work: Round, items: list[Item[op.ReleaseSession]]) -> None:
    """Only its holder can let a session go."""
    for item in items:
        changed = work.one(
            "UPDATE sessions SET holder = NULL WHERE session_key = ? AND holder = ?",
            (item.operation.session_key, item.operation.host),
        )
        item.answer = changed > 0


def complete_session(work: Round, items: list[Item[op.CompleteSession]]) -> None:
    """The first write wins."""
    for item in items:
        changed = work.one(
            "UPDATE sessions SET completed_at = ? WHERE session_key = ? AND completed_at IS NULL",
            (item.operation.at, item.operation.session_key),
        )
        item.answer = changed > 0


def set_lineage(work: Round, items: list[Item[op.SetLineage]]) -> None:
    """The last word on it stays."""
    for item in items:
        new = item.operation
        changed = work.one(
            """
            UPDATE sessions SET parent_session_key = ?, root_session_key = ?, depth = ?, parent_inferred = ?
            WHERE session_key = ?
            """,
            (new.parent_session_key, new.root_session_key, new.depth, new.inferred, new.session_key),
        )
        item.answer = changed > 0


def set_objective(work: Round, items: list[Item[op.SetObjective]]) -> None:
    """The last one stays."""
    for item in items:
        new = item.operation
        changed = work.one(
            "UPDATE sessions SET objective = ? WHERE session_key = ?",
            (work.redactor.text(new.objective), new.session_key),
        )
        item.answer = changed > 0


def save_context(work: Round, items: list[Item[op.SaveContext]]) -> None:
    """Contexts are collected: a merge in the same round may concern the same session."""
    for item in items:
        work.add_context(item.order, item.operation.session_key, item.operation.at, item.operation.context)


def append_turns(work: Round, items: list[Item[op.AppendTurns]]) -> None:
    """Turns are collected: a merge in the same round may concern the same session."""
    for item in items:
        new = item.operation
        work.add_turns(item.order, new.session_key, new.at, new.turns, new.run_id)


def compact_history(work: Round, items: list[Item[op.CompactHistory]]) -> None:
    """Kept is what comes after the newest turn that is not; where there is none, all of it."""
    for item in items:
        new = item.operation
        row = work.cursor.execute(
            """
            INSERT INTO compactions (session_id, at, summary, first_kept_turn_id)
            SELECT id, ?, ?, 1 + coalesce(
                (SELECT id FROM turns WHERE session_id = sessions.id ORDER BY id DESC LIMIT 1 OFFSET ?), 0)
            FROM sessions WHERE session_key = ?
            RETURNING first_kept_turn_id
            """,
            (new.at, work.redactor.text(new.summary), new.kept, new.session_key),
        ).fetchone()
        if row is None:
            raise LookupError(f"there is no session {new.session_key} to compact: open it first")
        item.answer = row[0]


def save_checkpoint(work: Round, items: list[Item[op.SaveCheckpoint]]) -> None:
    """A checkpoint covers the turns stored so far; what it leaves out is taken over here, where nobody is faster."""
    for item in items:
        new, text = item.operation, work.redactor.text
        work.one(
            """
            INSERT INTO checkpoints (session_id, at, trigger, digest, entities, constraints, last_turn_id)
            SELECT id, ?, ?, ?,
                   coalesce(?, (SELECT entities FROM checkpoints WHERE session_id = sessions.id
                                ORDER BY id DESC LIMIT 1), '[]'),
                   coalesce(?, (SELECT constraints FROM checkpoints WHERE session_id = sessions.id
                                ORDER BY id DESC LIMIT 1), '[]'),
                   coalesce((SELECT max(id) FROM turns WHERE session_id = sessions.id), 0)
            FROM sessions WHERE session_key = ?
            """,
            (
                *(new.at, new.trigger, text(new.digest)),
                *(_listed(work, new.entities), _listed(work, new.constraints)),
                new.session_key,
            ),
        )
        if work.cursor.rowcount == 0:
            raise LookupError(f"there is no session {new.session_key} to checkpoint: open it first")
        item.answer = work.cursor.lastrowid
        work.one(
            """
            WITH mine AS (SELECT checkpoints.id FROM checkpoints JOIN sessions ON sessions.id = session_id
                          WHERE session_key = ?1 ORDER BY checkpoints.id DESC)
            DELETE FROM checkpoints WHERE id IN (SELECT id FROM mine LIMIT -1 OFFSET ?2)
            """,
            (new.session_key, CHECKPOINTS_KEPT),
        )


def _listed(work: Round, texts: tuple[str, ...] | None) -> str | None:
    if texts is None:
        return None
    return json.dumps([work.redactor.text(text) for text in texts], ensure_ascii=False)


def set_ingest_offset(work: Round, items: list[Item[op.SetIngestOffset]]) -> None:
    """Compare and set, in the commit of the turns it accounts for: of two readers of a file one stores them."""
    for item in items:
        new = item.operation
        if new.before is None:
            changed = work.one(
                """
                INSERT INTO ingests (path, session_id, offset, anchor)
                VALUES (?, (SELECT id FROM sessions WHERE session_key = ?), ?, ?) ON CONFLICT (path) DO NOTHING
                """,
                (new.path, new.session_key, new.offset, new.anchor),
            )
        else:
            changed = work.one(
                """
                UPDATE ingests SET offset = ?, anchor = ?,
                       session_id = (SELECT id FROM sessions WHERE session_key = ?)
                WHERE path = ? AND offset = ? AND anchor = ?
                """,
                (new.offset, new.anchor, new.session_key, new.path, *new.before),
            )
        if not changed:
            raise IngestConflictError(f"{new.path} was taken in by somebody else at the same moment: try again")
