"""``kill``, ``follow-up``, ``replay`` and ``sweep``: what only a running host can do, done through its server."""

from typing import Annotated

import typer

from understudy.gateway.cli.client import the_server
from understudy.gateway.cli.looking import run_id
from understudy.gateway.cli.options import AsJson, Db, Run
from understudy.gateway.cli.refusal import Exit, Refusal
from understudy.gateway.cli.screen import print_json, print_line

_LARGEST = 2**63 - 1  # of SQLite's integers
_LONGEST_WAIT = 50.0  # seconds a request may wait at the server


def kill(
    run: Run,
    *,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why.")] = "killed from the command line",
    db: Db = None,
    as_json: AsJson = False,
) -> None:
    """End a run and everything below it.

    What it said and used so far is kept.
    """
    name = run_id(run)
    _something("--reason", reason)
    done = the_server(db).done(f"/api/runs/{name}/kill", {"reason": reason})
    if as_json:
        print_json(done)
    if not done["killed"]:
        raise Refusal(f"nothing was killed: run {name} had ended already, see `understudy show {name}`")
    if not as_json:
        print_line(f"killed {len(done['killed'])}: {', '.join(done['killed'])}")


def follow_up(
    run: Run,
    message: Annotated[str, typer.Argument(metavar="MESSAGE", help="What more to say.")],
    *,
    wait: Annotated[
        float,
        typer.Option("--wait", min=0.0, max=_LONGEST_WAIT, metavar="SECONDS", help="So long for the reply."),
    ] = 0.0,
    db: Db = None,
    as_json: AsJson = False,
) -> None:
    """Say more to a kept sub-agent, whose run this was."""
    name = run_id(run)
    _something("MESSAGE", message)
    done = the_server(db).done(f"/api/runs/{name}/follow-up", {"message": message, "wait": wait})
    if as_json:
        print_json(done)
    elif done["result"] is None:
        print_line(f"accepted as run {done['run_id']}: `understudy show {done['run_id']}` when it has ended")
    else:
        print_line(done["result"]["output"])


def replay(
    dead_letter: Annotated[
        int,
        typer.Argument(metavar="ID", min=1, max=_LARGEST, help="Its number: `understudy dead-letters` lists them."),
    ],
    *,
    db: Db = None,
    as_json: AsJson = False,
) -> None:
    """Put a dead letter back on the road."""
    done = the_server(db).done(f"/api/dead-letters/{dead_letter}/replay", {})
    if as_json:
        print_json(done)
    if not done["replayed"]:
        raise Refusal(f"dead letter {dead_letter} was put back before")
    if not as_json:
        print_line(f"dead letter {dead_letter} is on the road again")


def sweep(*, db: Db = None, as_json: AsJson = False) -> None:
    """Sweep for ghosts now."""
    done = the_server(db).done("/api/sweep", {})
    if as_json:
        print_json(done)
    else:
        print_line(f"swept: {done['found']} ghosts found")


def _something(name: str, text: str) -> None:
    if not text.strip():
        raise Refusal(f"{name} is empty: write what is to be said", Exit.BAD_INPUT)
