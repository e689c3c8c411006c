"""``tail``: events as they happen, from the server where one runs, else by asking the database again and again."""

import sys
import time
from collections.abc import Callable, Generator
from functools import lru_cache
from typing import Annotated, Any

import typer

from understudy.gateway.cli.client import Server, ServerGone, find_server
from understudy.gateway.cli.documents import Document, event_document
from understudy.gateway.cli.harmless import one_line
from understudy.gateway.cli.looking import open_view, session_key, the_run
from understudy.gateway.cli.options import AsJson, Db, OfRun, OfSession
from understudy.gateway.cli.screen import duration, moment, print_json_line, print_line
from understudy.persistence import StoreView

_LAST_WORDS = {"session:sub_agent_delivered", "session:sub_agent_dead_lettered"}
_GAP = "gap"
_PREFIX = "session:sub_agent_"
_KNOWN_LABELS = 1_000


def tail(
    *,
    run: OfRun = None,
    session: OfSession = None,
    interval: Annotated[
        float,
        typer.Option(
            "--interval",
            min=0.05,
            max=60.0,
            metavar="SECONDS",
            help="How often the database is asked without a server.",
        ),
    ] = 0.5,
    db: Db = None,
    as_json: AsJson = False,
) -> None:
    """Follow what happens, until Ctrl-C.

    With --run until that run's result is delivered. Without a server less is heard: what the database records.
    """
    key = None if session is None else session_key(session)
    with open_view(db) as view:
        if run is not None:
            the_run(view, run)
        label = lru_cache(_KNOWN_LABELS)(lambda name: _label(view, name))
        for event in heard(view, find_server(db), lambda: time.sleep(interval)):
            if event is None:
                # Only now: whatever comes true from here on is heard.
                if run is not None and the_run(view, run).facts.delivered_at is not None:
                    _remark(f"run {run} is over: see `understudy show {run}`")
                    return
            elif event["name"] == _GAP:
                _remark(f"{event['missed'] or 'some'} events came faster than they could be told")
            elif run in {None, event["run_id"]} and key in {None, event["session_key"]}:
                if as_json:
                    print_json_line(event)
                else:
                    who = event["session_key"] if event["run_id"] is None else label(event["run_id"])
                    print_line(f"{moment(event['at'])}  {who}  {in_words(event)}")
                    sys.stdout.flush()
                if run is not None and event["name"] in _LAST_WORDS:
                    return


def heard(view: StoreView, server: Server | None, pause: Callable[[], None]) -> Generator[Document | None, None, None]:
    """Events, one after the other, from the server; from the database where there is none, or it ends.

    None says that nothing is missed from here on.
    """
    if server is not None:
        try:
            with server.listening() as events:
                _remark(f"following {server.url}; Ctrl-C ends it")
                yield None
                yield from events
            _remark("the server has stopped")
        except ServerGone as error:
            _remark(str(error))
    mark = view.news.bookmark()
    _remark(f"following {view.path}; Ctrl-C ends it")
    yield None
    while True:
        for event in view.news.since(mark):
            yield event_document(event)
        pause()


def in_words(event: Document) -> str:
    """What happened, on one line."""
    name, data = event["name"].removeprefix(_PREFIX), dict(event["data"])
    if name == "lifecycle_ended":
        took = duration(int(data.get("runtime_ms") or 0))
        return one_line(f"ended as {data.get('end_reason')} after {took}, {data.get('tokens', 0)} tokens")
    if name == "progress" and "path" in data:
        return one_line(f"{data.get('provenance', 'touched')} {data['path']}")
    if name == "progress" and "text" in data:
        return one_line(str(data["text"]))
    words = name.replace("_", " ")
    told = ", ".join(f"{key} {value}" for key, value in data.items() if key != "label" and value is not None)
    return one_line(f"{words}: {told}" if told else words)


def _label(view: StoreView, run_id: Any) -> str:
    record = view.runs.get(str(run_id))
    return one_line(f"{run_id} {record.label}" if record is not None else str(run_id))


def _remark(words: str) -> None:
    """Said beside the events, so that a pipe gets nothing else."""
    sys.stderr.write(f"{one_line(words)}\n")
    sys.stderr.flush()
