"""Is the file whole? What ``doctor`` asks, and every crash test."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from understudy.persistence.errors import StoreError

if TYPE_CHECKING:
    from understudy.persistence._reader import Reader

# Each counts what must not exist, whatever happened when.
_BROKEN = {
    "turns without an index row": "SELECT count(*) FROM turns WHERE id NOT IN (SELECT id FROM turns_fts_docsize)",
    "index rows without a turn": "SELECT count(*) FROM turns_fts_docsize WHERE id NOT IN (SELECT id FROM turns)",
    "ended runs without a result": """
        SELECT count(*) FROM runs LEFT JOIN results ON results.run = runs.id
        WHERE ended_at IS NOT NULL AND results.run IS NULL""",
    "ended runs without an outbox entry": """
        SELECT count(*) FROM runs LEFT JOIN outbox ON outbox.run = runs.id
        WHERE ended_at IS NOT NULL AND outbox.run IS NULL""",
    "results of runs without an end": """
        SELECT count(*) FROM results JOIN runs ON runs.id = results.run WHERE ended_at IS NULL""",
    "runs and outbox that disagree about delivery": """
        SELECT count(*) FROM outbox JOIN runs ON runs.id = outbox.run
        WHERE outbox.delivered_at IS NOT runs.delivered_at""",
    "runs without their session": """
        SELECT count(*) FROM runs WHERE session_key NOT IN (SELECT session_key FROM sessions)""",
}


def problems(reader: Reader) -> list[str]:
    """Everything that is wrong with the file, in words; reads all of it."""
    found = []
    try:
        rows: list[Any] = reader.rows("PRAGMA integrity_check")
        found += [str(row[0]) for row in rows if row[0] != "ok"]
        found += [f"foreign key: {row}" for row in reader.rows("PRAGMA foreign_key_check")]
        for what, query in _BROKEN.items():
            row: Any = reader.row(query)
            if row[0]:
                found.append(f"{row[0]} {what}")
    except StoreError as error:
        found.append(str(error))
    return found
