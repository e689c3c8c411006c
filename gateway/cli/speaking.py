"""``mcp``: the tools for another program's agent, over standard input and output."""

import os
from typing import Annotated

import typer

from understudy.gateway.cli.looking import session_key
from understudy.gateway.cli.options import DEFAULT_DB, Db
from understudy.gateway.cli.refusal import Exit, Refusal
from understudy.gateway.harness import claude_code
from understudy.gateway.harness.sighting import key
from understudy.protocol import SessionKey


def mcp(
    *,
    agent: Annotated[
        str | None,
        typer.Option("--agent", metavar="ID", help="As this agent; else as the session's, or as 'default'."),
    ] = None,
    session: Annotated[
        str | None,
        typer.Option(
            "--session",
            metavar="KEY",
            envvar="UNDERSTUDY_SESSION",
            help="The caller's session; else Claude Code's, where that starts this.",
        ),
    ] = None,
    db: Db = None,
) -> None:
    """Offer search and sub-agents as MCP tools, on standard input and output."""
    try:
        from understudy.gateway.mcp.stdio import Desk, serve_stdio  # noqa: PLC0415 - needs its extra
    except ImportError as error:
        raise Refusal(str(error), Exit.BAD_INPUT) from error
    database = db or DEFAULT_DB
    if database.is_dir():
        raise Refusal(f"{database} is a folder: give the path of the database in it", Exit.BAD_INPUT)
    if agent is not None and not agent.strip():
        raise Refusal("--agent is empty: name one, or leave it out", Exit.BAD_INPUT)
    serve_stdio(Desk(db, agent, _callers(session)))


def _callers(session: str | None) -> SessionKey | None:
    """The session that the tools are called from, as far as anybody says."""
    if session:
        return session_key(session)
    harness_session = os.environ.get("CLAUDE_CODE_SESSION_ID")
    return key(claude_code.HARNESS, harness_session) if harness_session else None
