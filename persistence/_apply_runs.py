"""Carrying out what concerns runs, their results and their delivery.

A wall clock may be set back while a run lives. Each time is therefore written as at least the time of the fact
before it: a run's facts stay in the order in which they happened, and can be believed when they are loaded.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

from understudy.persistence._storable import plain_document
from understudy.persistence.errors import DuplicateRunError

if TYPE_CHECKING:
    from understudy.persistence import operations as op
    from understudy.persistence._bulk import Row
    from understudy.persistence._round import Item, Round
    from understudy.protocol import Usage

# A runner may report any number, and none may keep its run from ending. Beyond this one it is counted as this
# one: it fits, and so does the sum of thirty thousand of them.
_MOST = 2**48


# Columns that are copied as they are.
_OF_PACKET = attrgetter(
    *("run_id", "session_key", "parent_session_key", "parent_run_id", "root_session_key", "depth"),
    *("runner", "spec_id", "deadline_at"),
)
_OF_ACCEPTANCE = attrgetter("idempotency_key", "digest", "announce", "is_follow_up", "host", "at")


def accept_run(work: Round, items: list[Item[op.AcceptRun]]) -> None:
    """New runs, with everything a restart needs to know about them."""
    rows = []
    keys: dict[tuple[str, str], op.AcceptRun] = {}
    for new in [item.operation for item in items]:
        if new.idempotency_key is not None:
            _refuse_duplicate(work, new, keys)
        packet = new.packet
        document, clean = work.redactor.document(packet)
        # The label stands in the document too: where that is clean, so is the label.
        label = packet.label if clean else work.redactor.text(packet.label)
        waits, began = new.at if new.queued else None, new.at if new.started else None
        rows.append((*_OF_PACKET(packet), *_OF_ACCEPTANCE(new), label, document, waits, began))
    work.bulk(
        """
        INSERT INTO runs (run_id, session_key, parent_session_key, parent_run_id, root_session_key, depth,
                          runner, spec_id, deadline_at, idempotency_key, digest, announce, is_follow_up,
                          host, accepted_at, label, packet, queued_at, started_at)
        VALUES {rows}
        """,
        "(?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
        rows,
    )


def _refuse_duplicate(work: Round, new: op.AcceptRun, keys: dict[tuple[str, str], op.AcceptRun]) -> None:
    assert new.idempotency_key is not None
    first = keys.setdefault((new.packet.parent_session_key, new.idempotency_key), new)
    if first is not new:
        raise DuplicateRunError(first.packet.run_id, first.digest)
    # Looked up inside the write transaction, so the answer cannot grow stale before the insert.
    known = work.cursor.execute(
        "SELECT run_id, digest FROM runs WHERE parent_session_key = ? AND idempotency_key = ?",
        (new.packet.parent_session_key, new.idempotency_key),
    ).fetchone()
    if known is not None:
        raise DuplicateRunError(*known)


def start_run(work: Round, items: list[Item[op.StartRun]]) -> None:
    """A run starts once; one that was ended while it waited does not start at all."""
    started = work.bulk(
        """
        WITH given (run_id, generation, at, host, deadline_at) AS (VALUES {rows})
        UPDATE runs SET started_at = max(given.at, runs.accepted_at), host = given.host,
               deadline_at = coalesce(given.deadline_at, runs.deadline_at)
        FROM given WHERE runs.run_id = given.run_id AND runs.generation = given.generation
                     AND runs.started_at IS NULL AND runs.ended_at IS NULL
        RETURNING runs.run_id
        """,
        "(?,?,?,?,?)",
        [(new.run_id, new.generation, new.at, new.host, new.deadline_at) for new in [item.operation for item in items]],
    )
    won = {row[0] for row in started}
    for item in items:
        item.answer = item.operation.run_id in won


def restart_run(work: Round, items: list[Item[op.RestartRun]]) -> None:
    """The generation is the fence: whatever the last incarnation still says belongs to an older one."""
    for item in items:
        new = item.operation
        changed = work.one(
            """
            UPDATE runs SET generation = ?, host = ?, restarted_at = ?
            WHERE run_id = ? AND generation = ? AND ended_at IS NULL
            """,
            (new.generation, new.host, new.at, new.run_id, new.generation - 1),
        )
        item.answer = changed > 0


def progress(work: Round, items: list[Item[op.Progress]]) -> None:
    """Progress of an ended run, or of an older generation, is not progress."""
    work.bulk(
        """
        WITH given (run_id, generation, at, input_tokens, output_tokens, cost_usd, steps) AS (VALUES {rows})
        UPDATE runs SET last_progress_at = max(given.at, coalesce(runs.last_progress_at, runs.started_at)),
               input_tokens = coalesce(given.input_tokens, runs.input_tokens),
               output_tokens = coalesce(given.output_tokens, runs.output_tokens),
               cost_usd = coalesce(given.cost_usd, runs.cost_usd),
               steps = coalesce(given.steps, runs.steps)
        FROM given WHERE runs.run_id = given.run_id AND runs.generation = given.generation
                     AND runs.started_at IS NOT NULL AND runs.ended_at IS NULL
        """,
        "(?,?,?,?,?,?,?)",
        [
            (
                *(new.run_id, new.generation, new.at),
                *((None, None, None) if new.usage is None else _counted(new.usage)),
                None if new.steps is None else min(new.steps, _MOST),
            )
            for new in [item.operation for item in items]
        ],
    )


def _counted(usage: Usage) -> Row:
    return min(usage.input_tokens, _MOST), min(usage.output_tokens, _MOST), min(usage.cost_usd, float(_MOST))


def request_cancel(work: Round, items: list[Item[op.RequestCancel]]) -> None:
    """The first request is the one that is attributed."""
    for item in items:
        new = item.operation
        changed = work.one(
            """
            UPDATE runs SET cancel_requested_at = ?, cancel_reason = ?
            WHERE run_id = ? AND cancel_requested_at IS NULL AND ended_at IS NULL
            """,
            (new.at, work.redactor.text(new.reason), new.run_id),
        )
        item.answer = changed > 0


def finish_run(work: Round, items: list[Item[op.FinishRun]]) -> None:
    """The end, the result and the outbox entry, and the merge if it comes along; only of the first end."""
    redactor = work.redactor
    ended = work.bulk(
        """
        WITH given (run_id, generation, at, end_reason, failure, partial,
                    input_tokens, output_tokens, cost_usd, steps, merged) AS (VALUES {rows})
        UPDATE runs SET ended_at = max(given.at, coalesce(runs.last_progress_at, runs.started_at, runs.accepted_at)),
               delivered_at = CASE WHEN given.merged THEN
                   max(given.at, coalesce(runs.last_progress_at, runs.started_at, runs.accepted_at)) END,
               end_reason = given.end_reason, failure = given.failure, partial = given.partial,
               input_tokens = given.input_tokens, output_tokens = given.output_tokens,
               cost_usd = given.cost_usd, steps = given.steps
        FROM given WHERE runs.run_id = given.run_id AND runs.generation = given.generation
                     AND runs.ended_at IS NULL
        RETURNING runs.run_id, runs.id, runs.ended_at
        """,
        "(?,?,?,?,?,?,?,?,?,?,?)",
        [
            (
                *(end.run_id, end.generation, new.at, end.end_reason),
                None if end.failure is None else redactor.document(end.failure)[0],
                *(end.partial, *_counted(end.usage), min(end.steps, _MOST), new.merge is not None),
            )
            for new, end in [(item.operation, item.operation.result) for item in items]
        ],
    )
    won = {run_id: (run, ended_at) for run_id, run, ended_at in ended}
    results, outbox = [], []
    for item in items:
        new, end = item.operation, item.operation.result
        document, _ = redactor.document(end)
        run, ended_at = won.get(end.run_id, (None, None))
        item.answer = run is not None
        if run is None:
            _record_late(work, new, document)
            continue
        full = None if new.full_output is None else redactor.text(new.full_output)
        results.append((run, end.generation, document, full))
        delivered_at = None if new.merge is None else ended_at
        outbox.append((run, end.generation, new.deliver_to or end.parent_session_key, ended_at, delivered_at))
        if new.merge is not None:
            _take_in(work, item.order, new.merge)
    work.bulk("INSERT INTO results (run, generation, result, full_output) VALUES {rows}", "(?,?,?,?)", results)
    work.bulk(
        "INSERT INTO outbox (run, generation, session_key, created_at, delivered_at) VALUES {rows}",
        "(?,?,?,?,?)",
        outbox,
    )


def _take_in(work: Round, order: int, merge: op.MergeResult) -> None:
    """What a merge says and leaves behind in the session."""
    work.add_turns(order, merge.session_key, merge.at, merge.turns, None)
    if merge.context is not None:
        work.add_context(order, merge.session_key, merge.at, merge.context)


def _record_late(work: Round, new: op.FinishRun, document: str) -> None:
    # An unknown run has no id: NOT NULL then refuses the row, and so the transaction.
    work.one(
        """
        INSERT INTO late_endings (run, generation, at, end_reason, result)
        VALUES ((SELECT id FROM runs WHERE run_id = ?), ?, ?, ?, ?)
        """,
        (new.result.run_id, new.result.generation, new.at, new.result.end_reason, document),
    )


def condense_result(work: Round, items: list[Item[op.CondenseResult]]) -> None:
    """Only what nobody has read yet can still become shorter."""
    for item in items:
        new = item.operation.result
        waiting = work.cursor.execute(
            """
            UPDATE runs SET input_tokens = ?, output_tokens = ?, cost_usd = ?
            WHERE run_id = ? AND generation = ? AND end_reason = ? AND failure IS ? AND partial = ?
              AND delivered_at IS NULL
            RETURNING id
            """,
            (
                *(*_counted(new.usage), new.run_id, new.generation, new.end_reason),
                None if new.failure is None else work.redactor.document(new.failure)[0],
                new.partial,
            ),
        ).fetchone()
        item.answer = waiting is not None
        if waiting is not None:
            # SQLite reads both columns as they were before: the old output becomes the full one.
            work.one(
                """
                UPDATE results SET result = ?, full_output = coalesce(full_output, json_extract(result, '$.output'))
                WHERE run = ?
                """,
                (work.redactor.document(new)[0], *waiting),
            )


def merge_result(work: Round, items: list[Item[op.MergeResult]]) -> None:
    """Delivery is exactly once by this commit: run and generation are its key."""
    merged = work.bulk(
        """
        WITH given (run_id, generation, at) AS (VALUES {rows})
        UPDATE runs SET delivered_at = max(given.at, runs.ended_at)
        FROM given WHERE runs.run_id = given.run_id AND runs.generation = given.generation
                     AND runs.ended_at IS NOT NULL AND runs.delivered_at IS NULL
        RETURNING runs.run_id, runs.id, runs.delivered_at
        """,
        "(?,?,?)",
        [(new.run_id, new.generation, new.at) for new in [item.operation for item in items]],
    )
    won = {row[0] for row in merged}
    for item in items:
        new = item.operation
        item.answer = new.run_id in won
        if new.run_id in won:
            _take_in(work, item.order, new)
    work.bulk(
        """
        WITH given (run, at) AS (VALUES {rows})
        UPDATE outbox SET delivered_at = given.at, dead_at = NULL FROM given WHERE outbox.run = given.run
        """,
        "(?,?)",
        [(run, at) for _, run, at in merged],
    )


def delivery_failed(work: Round, items: list[Item[op.DeliveryFailed]]) -> None:
    """A failed delivery never changes the run's outcome."""
    for item in items:
        new = item.operation
        work.one(
            """
            UPDATE outbox SET attempts = attempts + 1, last_error = ?, next_attempt_at = ?
            WHERE run = (SELECT id FROM runs WHERE run_id = ?) AND delivered_at IS NULL
            """,
            (work.redactor.text(new.error), new.next_attempt_at, new.run_id),
        )


def dead_letter(work: Round, items: list[Item[op.DeadLetter]]) -> None:
    """Given up, and kept: nothing is pruned."""
    for item in items:
        new, redactor = item.operation, work.redactor
        work.one(
            "INSERT INTO dead_letters (session_key, run_id, at, reason, payload) VALUES (?, ?, ?, ?, ?)",
            (new.session_key, new.run_id, new.at, redactor.text(new.reason), redactor.text(new.payload)),
        )
        item.answer = work.cursor.lastrowid
        if new.run_id is not None:
            work.one(
                """
                UPDATE outbox SET dead_at = ?
                WHERE run = (SELECT id FROM runs WHERE run_id = ?) AND delivered_at IS NULL
                """,
                (new.at, new.run_id),
            )


def replay_dead_letter(work: Round, items: list[Item[op.ReplayDeadLetter]]) -> None:
    """The outbox entry starts over; merging stays exactly once."""
    for item in items:
        new = item.operation
        changed = work.one(
            "UPDATE dead_letters SET replayed_at = ? WHERE id = ? AND replayed_at IS NULL",
            (new.at, new.dead_letter_id),
        )
        item.answer = changed > 0
        if changed:
            work.one(
                """
                UPDATE outbox SET dead_at = NULL, attempts = 0, next_attempt_at = NULL
                WHERE delivered_at IS NULL AND run = (
                    SELECT runs.id FROM runs JOIN dead_letters USING (run_id) WHERE dead_letters.id = ?)
                """,
                (new.dead_letter_id,),
            )


def record_event(work: Round, items: list[Item[op.RecordEvent]]) -> None:
    """Events are history: they are appended and never read back by the lifecycle."""
    work.bulk(
        "INSERT INTO events (at, name, session_key, run_id, parent_run_id, depth, data) VALUES {rows}",
        "(?,?,?,?,?,?,?)",
        [
            (
                *(event.at, event.name, event.session_key, event.run_id, event.parent_run_id, event.depth),
                work.redactor.json(plain_document(dict(event.data))),
            )
            for event in [item.operation.event for item in items]
        ],
    )


def delete_run(work: Round, items: list[Item[op.DeleteRun]]) -> None:
    """Only what is over can be forgotten; its turns stay with their session until retention."""
    for item in items:
        run = work.cursor.execute(
            "SELECT id FROM runs WHERE run_id = ? AND ended_at IS NOT NULL AND delivered_at IS NOT NULL",
            (item.operation.run_id,),
        ).fetchone()
        item.answer = run is not None
        if run is not None:
            for table in ("results", "outbox", "late_endings"):
                work.one(f"DELETE FROM {table} WHERE run = ?", run)  # noqa: S608 - the three names above
            work.one("DELETE FROM runs WHERE id = ?", run)


def mark_exported(work: Round, items: list[Item[op.MarkExported]]) -> None:
    """The file is on disk; of a run that was swept or forgotten it should not be."""
    for item in items:
        changed = work.one(
            """
            UPDATE results SET exported_at = ?
            WHERE run = (SELECT id FROM runs WHERE run_id = ? AND swept_at IS NULL)
            """,
            (item.operation.at, item.operation.run_id),
        )
        item.answer = changed > 0


def mark_swept(work: Round, items: list[Item[op.MarkSwept]]) -> None:
    """The file's full text goes, and the turns of a child that was not kept. The run's end never changes."""
    for item in items:
        new = item.operation
        swept = work.cursor.execute(
            """
            UPDATE runs SET swept_at = max(?, ended_at)
            WHERE run_id = ? AND delivered_at IS NOT NULL AND swept_at IS NULL
            RETURNING id, session_key, json_extract(packet, '$.cleanup')
            """,
            (new.at, new.run_id),
        ).fetchone()
        item.answer = swept is not None
        if swept is not None:
            run, session_key, cleanup = swept
            work.one("UPDATE results SET full_output = NULL WHERE run = ?", (run,))
            if cleanup == "delete":
                for table in ("turns", "compactions", "checkpoints"):  # what was said, and what sums it up
                    work.one(
                        f"DELETE FROM {table} WHERE session_id = "  # noqa: S608 - the three names above
                        "(SELECT id FROM sessions WHERE session_key = ?)",
                        (session_key,),
                    )
