"""What is new in a store: for whoever follows it from outside, by asking again."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from understudy.persistence.runs import event_of
from understudy.protocol import Event, RunId, SessionKey

if TYPE_CHECKING:
    from understudy.persistence._reader import Reader
    from understudy.protocol.events import EventName

# The facts of a run that are worth telling, in the order in which they come true, and the event that tells them.
_TOLD: tuple[tuple[str, EventName], ...] = (
    ("accepted_at", "session:sub_agent_spawned"),
    ("queued_at", "session:sub_agent_spawn_queued"),
    ("started_at", "session:sub_agent_started"),
    ("ended_at", "session:sub_agent_lifecycle_ended"),
    ("delivered_at", "session:sub_agent_delivered"),
)
_SELECT = f"""
    SELECT id, run_id, parent_session_key, parent_run_id, depth, label, runner, end_reason,
           input_tokens + output_tokens, ended_at - coalesce(started_at, ended_at),
           {", ".join(fact for fact, _ in _TOLD)}
    FROM runs
"""  # noqa: S608 - columns of our own
_FACTS = 10  # where they begin in a row
# Of what happened in the same millisecond, what was recorded of a run stands between its start and its end.
_RANKS = {name: rank for rank, (_, name) in enumerate(_TOLD)}
_IN_BETWEEN = _RANKS["session:sub_agent_started"] + 0.5


@dataclass(slots=True)
class Bookmark:
    """How far somebody has read; `News.bookmark` makes one, `News.since` moves it."""

    run: int = 0
    event: int = 0
    open: dict[int, tuple[int | None, ...]] = field(default_factory=dict)
    """Runs that may still change, with the facts that were told."""


class News:
    """Reads what has happened since a bookmark. Of a run's life only its facts are stored, so only they are told."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def bookmark(self) -> Bookmark:
        """As of now."""
        mark = Bookmark()
        with self._reader.cursor() as cursor:
            cursor.execute("BEGIN")  # one moment for all three
            try:
                (mark.run,) = cursor.execute("SELECT coalesce(max(id), 0) FROM runs").fetchone()
                (mark.event,) = cursor.execute("SELECT coalesce(max(id), 0) FROM events").fetchone()
                for row in cursor.execute(f"{_SELECT} WHERE ended_at IS NULL OR delivered_at IS NULL"):
                    mark.open[row[0]] = row[_FACTS:]
            finally:
                cursor.execute("COMMIT")
        return mark

    def since(self, mark: Bookmark) -> list[Event]:
        """Everything new, in order of time; ``mark`` is moved behind it."""
        with self._reader.cursor() as cursor:
            cursor.execute("BEGIN")
            try:
                # By number, both of them: the cost is that of what is new or open, not of what there is.
                runs: list[Any] = cursor.execute(
                    f"""
                    {_SELECT} WHERE id IN (
                        SELECT value FROM json_each(?) UNION ALL SELECT id FROM runs WHERE id > ?)
                    ORDER BY id
                    """,  # noqa: S608 - of our own
                    (json.dumps(list(mark.open)), mark.run),
                ).fetchall()
                recorded: list[Any] = cursor.execute(
                    """
                    SELECT name, at, session_key, run_id, parent_run_id, depth, data, id FROM events
                    WHERE id > ? ORDER BY id
                    """,
                    (mark.event,),
                ).fetchall()
            finally:
                cursor.execute("COMMIT")
        news = [event_of(row[:-1]) for row in recorded]
        mark.event = recorded[-1][-1] if recorded else mark.event
        for row in runs:
            news += _told(row, mark)
        return sorted(news, key=lambda event: (event.at, _RANKS.get(event.name, _IN_BETWEEN)))


def _told(row: Any, mark: Bookmark) -> list[Event]:
    """The facts of a run that came true since the mark, as events."""
    number, run_id, session_key, parent, depth, label, runner, end_reason, tokens, runtime_ms, *facts = row
    known = mark.open.pop(number, (None,) * len(_TOLD))
    mark.run = max(mark.run, number)
    if facts[-1] is None:
        mark.open[number] = tuple(facts)
    told = []
    for (fact, name), before, at in zip(_TOLD, known, facts, strict=True):
        if at is None or before is not None:
            continue
        data = {"label": label, "runner": runner} if fact == "accepted_at" else {}
        if fact == "ended_at":
            data = {"end_reason": end_reason, "tokens": tokens, "runtime_ms": runtime_ms}
        told.append(
            Event(
                name, at, SessionKey(session_key), RunId(run_id), None if parent is None else RunId(parent), depth, data
            )
        )
    return told
