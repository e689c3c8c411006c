"""``show`` and ``tree``: one run with everything about it, one session with everything below it."""

import json
from operator import itemgetter
from typing import Annotated

import typer

from understudy.gateway.cli.documents import (
    Document,
    event_document,
    run_document,
    run_files,
    session_document,
    turn_document,
)
from understudy.gateway.cli.harmless import one_line
from understudy.gateway.cli.looking import open_view, the_run, the_session
from understudy.gateway.cli.options import AsJson, Db, Run
from understudy.gateway.cli.screen import (
    Branch,
    Column,
    duration,
    moment,
    money,
    print_heading,
    print_json,
    print_line,
    print_table,
    print_text,
    print_tree,
)
from understudy.persistence import RunRecord, StoredTurn, StoreView
from understudy.protocol import SessionKey

_SOME_LINES = 12
_SOME_CHARS = 1_200
_SOME_FILES = 10
_SOME_SESSIONS = 100


def show(
    run: Run,
    *,
    full: Annotated[bool, typer.Option("--full", help="Everything that was said, at its full length.")] = False,
    db: Db = None,
    as_json: AsJson = False,
) -> None:
    """Show a run: timeline, transcript, files, cost, result."""
    with open_view(db) as view:
        record = the_run(view, run)
        said = [stored for stored in view.transcripts.turns(record.session_key) if stored.run_id == record.run_id]
        whole = record.usage + view.runs.usage_below(record.session_key)
        document = run_document(record) | {
            "timeline": _timeline(view, record),
            "transcript": [turn_document(stored) for stored in said],
            "files": run_files(view, record),
            "usage_with_descendants": whole.model_dump(mode="json"),
            "output": view.runs.full_output(record.run_id),
        }
    if as_json:
        print_json(document)
        return
    _print_head(record, document["task"])
    print_heading("Timeline")
    for entry in document["timeline"]:
        print_line(
            f"  {moment(entry['at'])}  {'+' + duration(entry['at'] - record.facts.accepted_at):>8}  {entry['what']}"
        )
    print_heading("Transcript")
    for stored in said:
        _print_turn(stored, full=full)
    if not said:
        print_line("  nothing was kept")
    print_heading("Files")
    for file in document["files"]:
        print_line(f"  {file['provenance']:<8}  {file['path']}")
    if not document["files"]:
        print_line("  none")
    print_heading("Cost")
    for name, usage in (("this run", record.usage), ("with all below it", whole)):
        tokens = f"{usage.input_tokens:>11,} tokens in  {usage.output_tokens:>9,} out"
        print_line(f"  {name:<17}  {tokens}  {money(usage.cost_usd):>9}")
    if document["output"] is not None:
        print_heading("Result")
        print_text(_some(document["output"], full=full) or "(empty)", indent=2)


def tree(
    session: Annotated[
        str | None, typer.Argument(metavar="SESSION", help="A session's key; without one, the newest are listed.")
    ] = None,
    *,
    db: Db = None,
    as_json: AsJson = False,
) -> None:
    """Show a session, all below it, and their files."""
    with open_view(db) as view:
        if session is None:
            _list_sessions(view, as_json=as_json)
            return
        record = the_session(view, session)
        document = session_document(view, record) | _below(view, record.session_key, {record.session_key})
    if as_json:
        print_json(document)
    else:
        print_tree(_session_branch(document))


# -- one run --------------------------------------------------------------------------------------------------


def _timeline(view: StoreView, record: RunRecord) -> list[Document]:
    """Facts, recorded events and ends that came too late, in order of time."""
    facts, failure = record.facts, record.facts.failure
    why = f": {failure.kind}, {failure.message}" if failure is not None else ""
    moments: list[tuple[int | None, str]] = [
        (facts.accepted_at, "accepted"),
        (record.queued_at, "queued: no slot was free"),
        (facts.started_at, f"started by runner {record.runner}"),
        (record.restarted_at, f"taken up again, generation {facts.generation}"),
    ]
    for event in view.runs.events(record.run_id):
        told = event_document(event)["data"]
        words = ", ".join(f"{key} {value}" for key, value in told.items())
        if "path" in told:
            words = f"{told.get('provenance', 'touched')} {told['path']}"
        moments.append((event.at, f"{event.name.removeprefix('session:sub_agent_')}: {words}"))
    moments += [
        (facts.cancel_requested_at, f"asked to stop: {record.cancel_reason or 'no reason given'}"),
        (facts.ended_at, f"ended as {facts.end_reason}{why}"),
        *(
            (late.at, f"ended again as {late.end_reason}: too late, ignored")
            for late in view.runs.late_endings(record.run_id)
        ),
        (facts.delivered_at, "merged into its parent"),
        (facts.swept_at, "its result was removed: retention"),
    ]
    # Stable: what happened in the same millisecond stays in the order it has here.
    told = sorted(((at, what) for at, what in moments if at is not None), key=itemgetter(0))
    return [{"at": at, "what": what} for at, what in told]


def _print_head(record: RunRecord, task: str) -> None:
    facts = record.facts
    took = None if facts.ended_at is None or facts.started_at is None else facts.ended_at - facts.started_at
    state = f"{facts.end_reason or facts.status}" + (f" after {duration(took)}" if took is not None else "")
    lines = {
        "state": state + (f", steps: {record.steps}" if record.steps else ""),
        "task": task,
        "runner": record.runner,
        "session": record.session_key,
        "parent": record.parent_session_key + (f", run {record.parent_run_id}" if record.parent_run_id else ""),
    }
    print_line(f"{record.label}  {record.run_id}")
    for name, text in lines.items():
        print_line(f"  {name:<8}  {one_line(text)}")


def _print_turn(stored: StoredTurn, *, full: bool) -> None:
    turn = stored.turn
    print_line(f"  {moment(stored.at)}  {turn.role}")
    for call in turn.tool_calls:
        print_text(_some(f"→ {one_line(call.name)} {json.dumps(dict(call.arguments))}", full=full), indent=4)
    if turn.text:
        print_text(_some(turn.text, full=full), indent=4)


def _some(text: str, *, full: bool) -> str:
    """The beginning of a text, with how much was left out; or all of it."""
    if full:
        return text
    lines = text[:_SOME_CHARS].splitlines()[:_SOME_LINES]
    shown = "\n".join(lines)
    left = len(text.rstrip()) - len(shown)
    return f"{shown}\n… {left} characters more: --full" if left > 0 else shown


# -- one session ----------------------------------------------------------------------------------------------


def _below(view: StoreView, key: SessionKey, seen: set[SessionKey]) -> Document:
    """The runs a session has spawned, and the sessions below it that are no run's, each with what is below it."""
    children = []
    runs_of: dict[SessionKey, list[RunRecord]] = {}
    for record in view.runs.children(key):
        runs_of.setdefault(record.session_key, []).append(record)
    for child, records in runs_of.items():
        fresh = child not in seen
        seen.add(child)
        # A kept child that was followed up has several runs; what is below it stands with the last.
        for record in records:
            last = _below(view, child, seen) if fresh and record is records[-1] else {"runs": [], "sessions": []}
            children.append(run_document(record) | {"files": run_files(view, record)} | last)
    others = []
    for session in view.sessions.children(key):
        if session.session_key not in seen:
            seen.add(session.session_key)
            others.append(session_document(view, session) | _below(view, session.session_key, seen))
    return {"runs": children, "sessions": others}


def _session_branch(document: Document) -> Branch:
    notes = [document["title"], document["harness"]]
    return Branch(
        document["session_key"],
        note=", ".join(note for note in notes if note),
        below=[*_file_branches(document["files"]), *_children_branches(document)],
    )


def _run_branch(document: Document) -> Branch:
    took = None
    if document["ended_at"] is not None and document["started_at"] is not None:
        took = document["ended_at"] - document["started_at"]
    notes = [document["run_id"], duration(took), money(document["usage"]["cost_usd"])]
    if document["is_follow_up"]:
        notes.append("follow-up")
    return Branch(
        document["label"],
        state=document["end_reason"] or document["status"],
        note="  ".join(note for note in notes if note != "-"),
        below=[
            *_file_branches([f"{file['path']}  ({file['provenance']})" for file in document["files"]]),
            *_children_branches(document),
        ],
    )


def _children_branches(document: Document) -> list[Branch]:
    return [*map(_run_branch, document["runs"]), *map(_session_branch, document["sessions"])]


def _file_branches(files: list[str]) -> list[Branch]:
    more = [Branch("", note=f"… and {len(files) - _SOME_FILES} files more")] if len(files) > _SOME_FILES else []
    return [*(Branch("", note=file) for file in files[:_SOME_FILES]), *more]


def _list_sessions(view: StoreView, *, as_json: bool) -> None:
    records = [record for record in view.sessions.find(limit=_SOME_SESSIONS).items if record.parent_session_key is None]
    if as_json:
        print_json({"items": [session_document(view, record) for record in records]})
    elif not records:
        print_line("no sessions")
    else:
        columns = [Column("SESSION", "fold"), Column("AGENT"), Column("UPDATED"), Column("TITLE", "fold")]
        rows = [(r.session_key, r.agent_id, moment(r.updated_at), r.title or "-") for r in records]
        print_table(columns, rows)
