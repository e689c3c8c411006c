"""Finding the database, and in it what a command is about."""

from __future__ import annotations

from typing import TYPE_CHECKING

from understudy.gateway.cli.options import DEFAULT_DB
from understudy.gateway.cli.refusal import Exit, Refusal
from understudy.persistence import StoreView
from understudy.protocol import RunId, SessionKey

if TYPE_CHECKING:
    from pathlib import Path

    from understudy.persistence import RunRecord, SessionRecord


def open_view(db: Path | None) -> StoreView:
    """The store, for looking at; whoever runs on it is not disturbed."""
    try:
        return StoreView.open(db or DEFAULT_DB)
    except FileNotFoundError as error:
        hint = "" if db is not None else ", with --db PATH or UNDERSTUDY_DB"
        raise Refusal(f"{error}{hint}", Exit.BAD_INPUT) from error


def run_id(text: str) -> RunId:
    """A run's id, well formed."""
    try:
        return RunId(text)
    except ValueError as error:
        raise Refusal(str(error), Exit.BAD_INPUT) from error


def session_key(text: str) -> SessionKey:
    """A session's key, well formed."""
    try:
        return SessionKey(text)
    except ValueError as error:
        raise Refusal(str(error), Exit.BAD_INPUT) from error


def the_run(view: StoreView, text: str) -> RunRecord:
    """The run of that id."""
    record = view.runs.get(run_id(text))
    if record is None:
        raise Refusal(f"there is no run {text} in {view.path}: `understudy runs` lists those there are")
    return record


def the_session(view: StoreView, text: str) -> SessionRecord:
    """The session of that key."""
    record = view.sessions.get(session_key(text))
    if record is None:
        raise Refusal(f"there is no session {text} in {view.path}: `understudy tree` lists those there are")
    return record
