"""``runs``, ``search`` and ``dead-letters``: what there is, the newest or the best first."""

# No postponed annotations here and in the other commands: typer reads them.
from dataclasses import replace
from typing import Annotated, Literal

import typer

from understudy.gateway.cli.documents import hit_document, letter_document, run_document
from understudy.gateway.cli.looking import open_view, session_key
from understudy.gateway.cli.options import AsJson, Cursor, Db, Limit, OfSession
from understudy.gateway.cli.refusal import Exit, Refusal
from understudy.gateway.cli.screen import (
    Column,
    duration,
    moment,
    money,
    print_json,
    print_line,
    print_passages,
    print_table,
)
from understudy.persistence import RunRecord

Status = Literal["pending", "running", "completed", "failed"]


def runs(
    *,
    session: OfSession = None,
    status: Annotated[Status | None, typer.Option("--status", help="Only runs that are so.")] = None,
    runner: Annotated[str | None, typer.Option("--runner", metavar="NAME", help="Only runs of this runner.")] = None,
    limit: Limit = 20,
    cursor: Cursor = None,
    db: Db = None,
    as_json: AsJson = False,
) -> None:
    """List runs, the newest first."""
    parent = None if session is None else session_key(session)
    with open_view(db) as view:
        try:
            page = view.runs.find(parent_session_key=parent, status=status, runner=runner, limit=limit, cursor=cursor)
        except ValueError as error:
            raise Refusal(str(error), Exit.BAD_INPUT) from error
    if as_json:
        print_json({"items": [run_document(record) for record in page.items], "cursor": page.cursor})
        return
    if not page.items:
        print_line("no runs")
        return
    columns = [
        Column("RUN"),
        Column("LABEL", "cut"),
        Column("STATE"),
        Column("ACCEPTED"),
        Column("TOOK", right=True),
        Column("COST", right=True),
    ]
    print_table(columns, [_row(record) for record in page.items])
    if page.cursor is not None:
        print_line(f"there are more: --cursor {page.cursor}")


def search(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="Words, part of a word, or a session's key.")],
    *,
    session: OfSession = None,
    agent: Annotated[
        str | None,
        typer.Option("--agent", metavar="ID", help="Search as this agent; else as the session's, or as 'default'."),
    ] = None,
    shared: Annotated[bool, typer.Option("--shared", help="Also in what other agents share.")] = False,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=20, metavar="N", help="At most so many.")] = 10,
    db: Db = None,
    as_json: AsJson = False,
) -> None:
    """Search what was said, in running sessions too."""
    if not query.strip():
        raise Refusal("the query is empty: give a word that was said", Exit.BAD_INPUT)
    where = None if session is None else session_key(session)
    with open_view(db) as view:
        if agent is None:
            record = None if where is None else view.sessions.get(where)
            agent = "default" if record is None else record.agent_id
        found = view.search(
            query, agent_id=agent, visibility="shared" if shared else "isolated", session_key=where, limit=limit
        )
        hits = [replace(hit, excerpt=view.redactor.text(hit.excerpt)) for hit in found]
    if as_json:
        print_json({"items": [hit_document(hit) for hit in hits]})
        return
    if not hits:
        print_line(f"nothing found that agent {agent!r} may see")
        return
    columns = [Column("SESSION"), Column("WHEN"), Column("WHO"), Column("SAID")]
    print_passages(columns, [(hit.session_key, moment(hit.at), hit.role, hit.excerpt) for hit in hits])


def dead_letters(
    *,
    session: OfSession = None,
    replayed: Annotated[bool, typer.Option("--replayed", help="Those put back on the road too.")] = False,
    limit: Limit = 20,
    cursor: Cursor = None,
    db: Db = None,
    as_json: AsJson = False,
) -> None:
    """List what could not be delivered, the newest first."""
    whose = None if session is None else session_key(session)
    with open_view(db) as view:
        try:
            page = view.dead_letters.find(session_key=whose, replayed=replayed, limit=limit, cursor=cursor)
        except ValueError as error:
            raise Refusal(str(error), Exit.BAD_INPUT) from error
    if as_json:
        print_json({"items": [letter_document(letter) for letter in page.items], "cursor": page.cursor})
        return
    if not page.items:
        print_line("no dead letters")
        return
    columns = [
        Column("ID", right=True),
        Column("WHEN"),
        Column("FOR", "fold"),
        Column("RUN", "fold"),
        Column("REASON", "fold"),
    ]
    rows = [
        (str(letter.id), moment(letter.at), letter.session_key or "-", letter.run_id or "-", letter.reason)
        for letter in page.items
    ]
    print_table(columns, rows)
    if page.cursor is not None:
        print_line(f"there are more: --cursor {page.cursor}")


def _row(record: RunRecord) -> tuple[str, ...]:
    facts = record.facts
    took = None if facts.ended_at is None or facts.started_at is None else facts.ended_at - facts.started_at
    return (
        record.run_id,
        record.label,
        str(facts.end_reason or facts.status),
        moment(facts.accepted_at),
        duration(took),
        money(record.usage.cost_usd),
    )
