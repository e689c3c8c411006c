"""``serve``: a runtime on the database, and its HTTP server, until Ctrl-C."""

import asyncio
import contextlib
import importlib
import ipaddress
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from understudy.actors import AsyncRuntime, Runner, load_config
from understudy.gateway.cli.options import DEFAULT_DB, Config, Db
from understudy.gateway.cli.refusal import Exit, Refusal
from understudy.gateway.cli.screen import print_line
from understudy.gateway.harness import OpenCodeFollower, Reception
from understudy.gateway.harness.opencode_stream import of_this_machine

if TYPE_CHECKING:
    from understudy.gateway.http import Whereabouts

_LARGEST_PORT = 65_535


def serve(
    *,
    app: Annotated[
        str | None,
        typer.Option(
            "--app",
            metavar="MODULE:NAME",
            help="The runners, by name, or a function that makes them; without it nothing can be spawned.",
        ),
    ] = None,
    file: Config = None,
    host: Annotated[str, typer.Option("--host", metavar="ADDRESS", help="A loopback address.")] = ("127.0.0.1"),
    port: Annotated[int, typer.Option("--port", min=0, max=_LARGEST_PORT, metavar="N", help="0 takes a free one.")] = (
        8427
    ),
    opencode: Annotated[
        list[str] | None,
        typer.Option("--opencode", metavar="URL", help="Where an `opencode serve` listens: its sessions are taken in."),
    ] = None,
    db: Db = None,
) -> None:
    """Run a host and its HTTP server, until Ctrl-C."""
    try:
        from understudy.gateway import http  # noqa: PLC0415 - needs its extra
    except ImportError as error:
        raise Refusal(str(error), Exit.BAD_INPUT) from error
    database = db or DEFAULT_DB
    if database.is_dir():
        raise Refusal(f"{database} is a folder: give the path of the database in it", Exit.BAD_INPUT)
    if not _of_this_machine(host):
        raise Refusal(
            f"host {host} is no loopback address: use 127.0.0.1; to serve others, call "
            "understudy.gateway.http.serve(…, remote=True) from a program of your own",
            Exit.BAD_INPUT,
        )
    config = load_config(file)
    runners = {} if app is None else runners_of(app)
    try:
        with contextlib.ExitStack() as listeners:
            hooks = _taking_in(opencode or [], listeners)
            serving = http.serve(
                database, runners=runners, config=config, hooks=hooks, ready=_say_where, host=host, port=port
            )
            asyncio.run(serving)
    except (http.NotServedError, http.TokenFileError) as error:
        raise Refusal(str(error)) from error
    except FileNotFoundError as error:
        raise Refusal(str(error), Exit.BAD_INPUT) from error


def runners_of(name: str) -> Mapping[str, Runner]:
    """The runners that ``module:attribute`` is, or makes when it is called."""
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise Refusal(f"--app {name!r} is not allowed: write it as module:attribute", Exit.BAD_INPUT)
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)  # as `python -m` does it
    try:
        found: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
        runners = found() if callable(found) else found
    except Exception as error:  # it is somebody else's code
        raise Refusal(f"--app {name} cannot be used: {type(error).__name__}: {error}", Exit.BAD_INPUT) from error
    if not isinstance(runners, Mapping) or not all(
        isinstance(key, str) and hasattr(runner, "run") for key, runner in runners.items()
    ):
        raise Refusal(
            f"--app {name} is {type(runners).__name__}: make it a mapping of names to runners, or a function "
            "that returns one",
            Exit.BAD_INPUT,
        )
    return runners


def _taking_in(opencode: list[str], listeners: contextlib.ExitStack) -> Callable[[AsyncRuntime], Reception]:
    """What makes the harness side once a runtime is open: hooks that come, and streams that are listened to."""

    def begin(runtime: AsyncRuntime) -> Reception:
        reception = Reception(runtime)
        for url in opencode:
            password = os.environ.get("OPENCODE_SERVER_PASSWORD")
            follower = OpenCodeFollower(url, reception.continuity(), password=password)
            follower.start()
            listeners.callback(follower.stop)
        return reception

    try:
        for url in opencode:
            of_this_machine(url)
    except ValueError as error:
        raise Refusal(f"--opencode {error}", Exit.BAD_INPUT) from error
    return begin


def _of_this_machine(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _say_where(here: "Whereabouts") -> None:
    print_line(f"serving at {here.url} (pid {os.getpid()}); the token is in {here.token_file}; Ctrl-C ends it")
    sys.stdout.flush()
