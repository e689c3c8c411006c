"""A round: transactions that do not concern the same run, so that their rows can be written together."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Generic, TypeVar

from understudy.persistence import _bulk
from understudy.persistence._storable import plain_document
from understudy.persistence.operations import Answer, Operation

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Sequence

    from understudy.persistence._bulk import Row
    from understudy.persistence.redaction import Redactor
    from understudy.protocol import RunId, SessionKey, WorkingContext
    from understudy.protocol.model import ToolCall, Turn

O_co = TypeVar("O_co", bound=Operation, covariant=True)


class Item(Generic[O_co]):
    """One operation of a round: its place in the queue, and the answer it gets."""

    __slots__ = ("answer", "operation", "order")

    def __init__(self, operation: O_co, order: int) -> None:
        self.operation = operation
        self.order = order
        self.answer: Answer = None


class Round:
    """What the operations of a round share while they are carried out.

    Turns and contexts of one session may come from several transactions; they are collected, and written in
    the order in which they were queued.
    """

    __slots__ = ("_contexts", "_turns", "cursor", "redactor")

    def __init__(self, cursor: sqlite3.Cursor, redactor: Redactor) -> None:
        self.cursor = cursor
        self.redactor = redactor
        self._contexts: list[tuple[int, Row]] = []
        self._turns: list[tuple[int, Row]] = []

    def bulk(self, sql: str, row: str, rows: Sequence[Row]) -> list[Row]:
        """Run a multi-row statement; see :func:`_bulk.run`."""
        return _bulk.run(self.cursor, sql, row, rows)

    def one(self, sql: str, row: Row) -> int:
        """Run a statement for one row; gives the number of rows it changed."""
        return self.cursor.execute(sql, row).rowcount

    def add_turns(
        self, order: int, session_key: SessionKey, at: int, turns: Iterable[Turn], run_id: RunId | None
    ) -> None:
        """Collect turns, to be written at the end of the round."""
        text = self.redactor.text
        for turn in turns:
            calls = calls_document(turn.tool_calls, self.redactor) if turn.tool_calls else None
            answered = None if turn.tool_call_id is None else text(turn.tool_call_id)
            row = (session_key, run_id, turn.role, text(turn.text), calls, answered, at)
            self._turns.append((order, row))

    def add_context(self, order: int, session_key: SessionKey, at: int, context: WorkingContext) -> None:
        """Collect a working context, to be written at the end of the round."""
        files = json.dumps(context.recent_files, ensure_ascii=False)
        self._contexts.append((order, (session_key, files, context.project_dir, context.max_files, at)))

    def write_contexts(self) -> None:
        """Write the collected contexts: of one session the last one stays."""
        if self._contexts:
            self.bulk(
                """
                INSERT INTO working_contexts (session_id, recent_files, project_dir, max_files, updated_at)
                VALUES {rows}
                ON CONFLICT (session_id) DO UPDATE SET
                    recent_files = excluded.recent_files, project_dir = excluded.project_dir,
                    max_files = excluded.max_files, updated_at = excluded.updated_at
                """,
                # Without the 0 that no session has, SQLite would number an unknown session itself: as another one.
                "(coalesce((SELECT id FROM sessions WHERE session_key = ?), 0),?,?,?,?)",
                _in_order(self._contexts),
            )

    def write_turns(self) -> None:
        """Write the collected turns."""
        if self._turns:
            self.bulk(
                """
                INSERT INTO turns (session_id, run_id, role, text, tool_calls, tool_call_id, at)
                VALUES {rows}
                """,
                "((SELECT id FROM sessions WHERE session_key = ?),?,?,?,?,?,?)",
                _in_order(self._turns),
            )


def calls_document(calls: Iterable[ToolCall], redactor: Redactor) -> str:
    """Tool calls as they are stored; the id as text, as in the turn that answers: the two stay each other's."""
    said = [{"id": redactor.text(call.id), "name": call.name, "arguments": dict(call.arguments)} for call in calls]
    return redactor.json(plain_document(said))


def _in_order(collected: list[tuple[int, Row]]) -> list[Row]:
    # Stable: the rows of one operation stay as they were given.
    collected.sort(key=lambda pair: pair[0])
    return [row for _, row in collected]
