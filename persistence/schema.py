"""The tables of version 1, and the two views that carry the names of the source documents.

Times are integers: milliseconds since the epoch. A run's status is never stored, its facts are.
"""

from __future__ import annotations

APPLICATION_ID = 0x55445354
"""Marks a file as ours (SQLite's ``application_id``), so that another program's database is never touched."""

TABLES = (
    """
    CREATE TABLE hosts (
        incarnation TEXT PRIMARY KEY,
        pid INTEGER NOT NULL,
        process_started INTEGER NOT NULL,
        started_at INTEGER NOT NULL,
        heartbeat_at INTEGER NOT NULL,
        stopped_at INTEGER
    ) WITHOUT ROWID
    """,
    """
    CREATE TABLE sessions (
        id INTEGER PRIMARY KEY,
        session_key TEXT NOT NULL UNIQUE,
        agent_id TEXT NOT NULL DEFAULT 'default',
        visibility TEXT NOT NULL DEFAULT 'isolated' CHECK (visibility IN ('isolated', 'shared')),
        parent_session_key TEXT,
        root_session_key TEXT NOT NULL,
        depth INTEGER NOT NULL DEFAULT 0,
        runner TEXT,
        workspace_dir TEXT,
        cwd TEXT,
        harness TEXT,
        project TEXT,
        title TEXT,
        holder TEXT,
        created_at INTEGER NOT NULL,
        updated_at INTEGER NOT NULL,
        completed_at INTEGER
    )
    """,
    "CREATE INDEX sessions_by_parent ON sessions (parent_session_key) WHERE parent_session_key IS NOT NULL",
    # Only sessions of a harness are looked up by recency, so only they pay for it on each turn.
    "CREATE INDEX sessions_by_activity ON sessions (project, harness, updated_at) WHERE harness IS NOT NULL",
    """
    CREATE TABLE runs (
        id INTEGER PRIMARY KEY,
        run_id TEXT NOT NULL UNIQUE,
        session_key TEXT NOT NULL,
        parent_session_key TEXT NOT NULL,
        parent_run_id TEXT,
        root_session_key TEXT NOT NULL,
        depth INTEGER NOT NULL,
        runner TEXT NOT NULL,
        label TEXT NOT NULL,
        spec_id TEXT,
        idempotency_key TEXT,
        digest TEXT,
        packet TEXT NOT NULL,
        announce INTEGER NOT NULL,
        is_follow_up INTEGER NOT NULL,
        host TEXT NOT NULL,
        generation INTEGER NOT NULL DEFAULT 1,
        accepted_at INTEGER NOT NULL,
        queued_at INTEGER,
        started_at INTEGER,
        deadline_at INTEGER,
        last_progress_at INTEGER,
        cancel_requested_at INTEGER,
        cancel_reason TEXT,
        restarted_at INTEGER,
        ended_at INTEGER,
        end_reason TEXT,
        failure TEXT,
        partial INTEGER NOT NULL DEFAULT 0,
        delivered_at INTEGER,
        swept_at INTEGER,
        input_tokens INTEGER NOT NULL DEFAULT 0,
        output_tokens INTEGER NOT NULL DEFAULT 0,
        cost_usd REAL NOT NULL DEFAULT 0,
        steps INTEGER NOT NULL DEFAULT 0,
        CONSTRAINT completed_without_a_start CHECK (end_reason <> 'completed' OR started_at IS NOT NULL)
    )
    """,
    "CREATE INDEX runs_by_parent ON runs (parent_session_key)",
    "CREATE INDEX runs_by_root ON runs (root_session_key)",
    "CREATE INDEX runs_by_session ON runs (session_key)",
    "CREATE INDEX runs_by_runner ON runs (runner)",
    "CREATE INDEX runs_by_spec ON runs (spec_id) WHERE spec_id IS NOT NULL",
    "CREATE INDEX runs_open ON runs (host) WHERE ended_at IS NULL",
    """
    CREATE UNIQUE INDEX runs_by_idempotency_key ON runs (parent_session_key, idempotency_key)
    WHERE idempotency_key IS NOT NULL
    """,
    """
    CREATE TABLE turns (
        id INTEGER PRIMARY KEY,
        session_id INTEGER NOT NULL REFERENCES sessions (id),
        run_id TEXT,
        role TEXT NOT NULL CHECK (role IN ('system', 'user', 'assistant', 'tool')),
        text TEXT NOT NULL,
        tool_calls TEXT,
        tool_call_id TEXT,
        at INTEGER NOT NULL
    )
    """,
    # The rowid follows session_id in this index: it orders a session's turns, from either end.
    "CREATE INDEX turns_by_session ON turns (session_id)",
    """
    CREATE VIRTUAL TABLE turns_fts USING fts5 (
        text, content = 'turns', content_rowid = 'id', tokenize = 'unicode61 remove_diacritics 2'
    )
    """,
    # Triggers, so that no way of writing a turn can forget its index row or the session's clock.
    """
    CREATE TRIGGER turns_indexed AFTER INSERT ON turns BEGIN
        INSERT INTO turns_fts (rowid, text) VALUES (new.id, new.text);
        UPDATE sessions SET updated_at = max(updated_at, new.at) WHERE id = new.session_id;
    END
    """,
    """
    CREATE TRIGGER turns_unindexed AFTER DELETE ON turns BEGIN
        INSERT INTO turns_fts (turns_fts, rowid, text) VALUES ('delete', old.id, old.text);
    END
    """,
    """
    CREATE TABLE checkpoints (
        id INTEGER PRIMARY KEY,
        session_id INTEGER NOT NULL REFERENCES sessions (id),
        at INTEGER NOT NULL,
        trigger TEXT NOT NULL CHECK (trigger IN ('periodic', 'pre_compaction', 'session_end', 'explicit')),
        digest TEXT NOT NULL,
        entities TEXT NOT NULL,
        constraints TEXT NOT NULL,
        last_turn_id INTEGER NOT NULL
    )
    """,
    "CREATE INDEX checkpoints_by_session ON checkpoints (session_id)",
    """
    CREATE TABLE working_contexts (
        session_id INTEGER PRIMARY KEY REFERENCES sessions (id),
        recent_files TEXT NOT NULL,
        project_dir TEXT,
        max_files INTEGER NOT NULL,
        updated_at INTEGER NOT NULL
    )
    """,
    """
    CREATE TABLE results (
        run INTEGER PRIMARY KEY REFERENCES runs (id),
        generation INTEGER NOT NULL,
        result TEXT NOT NULL,
        full_output TEXT,
        exported_at INTEGER
    )
    """,
    "CREATE INDEX results_unexported ON results (run) WHERE exported_at IS NULL",
    """
    CREATE TABLE late_endings (
        id INTEGER PRIMARY KEY,
        run INTEGER NOT NULL REFERENCES runs (id),
        generation INTEGER NOT NULL,
        at INTEGER NOT NULL,
        end_reason TEXT NOT NULL,
        result TEXT NOT NULL
    )
    """,
    """
    CREATE TABLE outbox (
        run INTEGER PRIMARY KEY REFERENCES runs (id),
        generation INTEGER NOT NULL,
        session_key TEXT NOT NULL,
        created_at INTEGER NOT NULL,
        attempts INTEGER NOT NULL DEFAULT 0,
        next_attempt_at INTEGER,
        last_error TEXT,
        dead_at INTEGER,
        delivered_at INTEGER
    )
    """,
    "CREATE INDEX outbox_undelivered ON outbox (session_key) WHERE delivered_at IS NULL",
    """
    CREATE TABLE dead_letters (
        id INTEGER PRIMARY KEY,
        session_key TEXT,
        run_id TEXT,
        at INTEGER NOT NULL,
        reason TEXT NOT NULL,
        payload TEXT NOT NULL,
        replayed_at INTEGER
    )
    """,
    "CREATE INDEX dead_letters_waiting ON dead_letters (id) WHERE replayed_at IS NULL",
    """
    CREATE TABLE events (
        id INTEGER PRIMARY KEY,
        at INTEGER NOT NULL,
        name TEXT NOT NULL,
        session_key TEXT NOT NULL,
        run_id TEXT,
        parent_run_id TEXT,
        depth INTEGER NOT NULL,
        data TEXT NOT NULL
    )
    """,
    "CREATE INDEX events_by_run ON events (run_id) WHERE run_id IS NOT NULL",
    """
    CREATE TABLE ingests (
        path TEXT PRIMARY KEY,
        session_id INTEGER NOT NULL REFERENCES sessions (id),
        offset INTEGER NOT NULL,
        anchor TEXT NOT NULL
    ) WITHOUT ROWID
    """,
)


def _iso(column: str) -> str:
    """``column`` (milliseconds) as the ISO text the source documents have."""
    return f"strftime('%Y-%m-%dT%H:%M:%S', {column} / 1000, 'unixepoch') || printf('.%03dZ', {column} % 1000)"


VIEWS = {
    # The inner ORDER BY carries into group_concat; its own ORDER BY would need SQLite 3.44.
    "session_transcripts": f"""
        SELECT session_key,
               coalesce((SELECT group_concat(line, char(10)) FROM (
                   SELECT role || ': ' || text AS line FROM turns
                   WHERE session_id = sessions.id ORDER BY id)), '') AS content,
               harness, project, agent_id,
               {_iso("created_at")} AS created_at,
               {_iso("updated_at")} AS updated_at,
               {_iso("completed_at")} AS completed_at
        FROM sessions
    """,  # noqa: S608 - columns of our own
    "subagent_sessions": f"""
        SELECT run_id AS id,
               runner AS runner_id,
               CASE WHEN end_reason = 'completed' THEN 'completed'
                    WHEN end_reason IS NOT NULL THEN 'failed'
                    WHEN started_at IS NOT NULL THEN 'running'
                    ELSE 'pending' END AS status,
               {_iso("accepted_at")} AS created_at,
               {_iso("ended_at")} AS completed_at,
               json_extract(packet, '$.workspace_dir') AS workspace_path,
               spec_id,
               json_extract(packet, '$.task') AS prompt,
               json_extract(packet, '$.artifact_refs') AS files_json,
               coalesce(full_output, json_extract(result, '$.output')) AS result_content,
               input_tokens AS token_input,
               output_tokens AS token_output,
               ended_at - coalesce(started_at, accepted_at) AS duration_ms,
               json_extract(failure, '$.message') AS error
        FROM runs LEFT JOIN results ON results.run = runs.id
    """,  # noqa: S608 - columns of our own
}
