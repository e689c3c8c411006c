"""``hook``: what an agent harness runs at its events, put into its settings and taken out again."""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import typer

from understudy.gateway.cli.options import DEFAULT_DB, AsJson, Db
from understudy.gateway.cli.refusal import Exit, Refusal
from understudy.gateway.cli.screen import Column, print_json, print_line, print_table, print_text
from understudy.gateway.hooks import installing
from understudy.gateway.hooks.claude_settings import TOKEN_VARIABLE, SettingsError, entries, summary
from understudy.gateway.hooks.installing import Change, Origins, Settings
from understudy.gateway.hooks.run import main as run_hook
from understudy.gateway.nearby import nearby

USUAL_URL = "http://127.0.0.1:8427"
"""Where `understudy serve` listens unless it is told otherwise."""

hook = typer.Typer(help="Have an agent harness tell of its sessions.", no_args_is_help=True)

Harness = Annotated[Literal["claude-code"], typer.Option("--harness", help="Whose settings.")]
User = Annotated[
    bool, typer.Option("--user/--project", help="Settings of the user, or of the project in the current folder.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would be written.")]
TokenFile = Annotated[
    Path | None, typer.Option("--token-file", metavar="FILE", help="Another token than the server's own.")
]


@hook.command("install")
def install(
    *,
    harness: Harness = "claude-code",
    user: User = False,
    http: Annotated[
        bool, typer.Option("--http", help=f"HTTP hooks where they work, with the token in {TOKEN_VARIABLE}.")
    ] = False,
    token_file: TokenFile = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    db: Db = None,
    as_json: AsJson = False,
) -> None:
    """Put hooks into a harness's settings.

    What would be written is shown first, and what is there stays.
    """
    database = (db or DEFAULT_DB).absolute()
    token = None if token_file is None else token_file.absolute()
    server = nearby(str(database))
    url = USUAL_URL if server is None else server.url
    origins = Origins.of(os.environ)
    with _in_a_sentence():
        wanted = entries(database, token_file=token, url=url if http else None)
        change = installing.install(_settings(user=user), wanted, origins)
        if _carried_out(change, origins, keep=True, yes=yes, dry_run=dry_run, as_json=as_json):
            print_line(f"{harness} runs them from its next start on, and `understudy serve` takes in what they tell")
            if http:
                print_line(f"export {TOKEN_VARIABLE} where you start it; {token or f'{database}.token'} holds it")


@hook.command("uninstall")
def uninstall(
    *,
    harness: Harness = "claude-code",
    user: User = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Take the hooks out of a harness's settings.

    The file is left as it was before they were put in, to the byte unless somebody has changed it since.
    """
    origins = Origins.of(os.environ)
    with _in_a_sentence():
        change = installing.uninstall(_settings(user=user), origins)
        if _carried_out(change, origins, keep=False, yes=yes, dry_run=dry_run, as_json=as_json):
            print_line(f"{harness} runs them no more")


@hook.command("status")
def status(*, db: Db = None, as_json: AsJson = False) -> None:
    """Show in which settings hooks are, and whether a server takes in what they tell."""
    server = nearby(str(db or DEFAULT_DB))
    rows = []
    for where, user in (("project", False), ("user", True)):
        try:
            settings = _settings(user=user)
            told = summary(settings.text or "")
        except SettingsError as error:
            settings, told = Settings(_file(user=user), None), f"broken: {error}"
        rows.append({"of": where, "file": str(settings.path), "hooks": told or "none"})
    if as_json:
        print_json({"settings": rows, "server": None if server is None else server.url})
        return
    print_table([Column("OF"), Column("HOOKS", "fold"), Column("FILE", "fold")], [
        (row["of"], row["hooks"], row["file"]) for row in rows
    ])  # fmt: skip
    told = "nobody takes in what they tell: start `understudy serve`" if server is None else f"served at {server.url}"
    print_line(told)


@hook.command("run")
def run(
    harness: Annotated[str, typer.Argument(metavar="HARNESS", help="Whose hook it is: claude-code.")],
    event: Annotated[str, typer.Argument(metavar="EVENT", help="The harness's name for it.")],
    *,
    token_file: TokenFile = None,
    db: Db = None,
) -> None:
    """Be the hook: hand the payload on the standard input to the server, and print its answer.

    Within two seconds, with exit code 0, and silent about whatever goes wrong.
    """
    more = [] if token_file is None else ["--token-file", str(token_file)]
    run_hook([harness, event, "--db", str(db or DEFAULT_DB), *more])


def _carried_out(change: Change, origins: Origins, *, keep: bool, yes: bool, dry_run: bool, as_json: bool) -> bool:
    """Show a change and, unless it is only to be shown, make it; whether there is more to tell."""
    asks = not (yes or dry_run or change.nothing)
    if asks and as_json:
        raise Refusal("--json does not ask: add --yes, or --dry-run", Exit.BAD_INPUT)
    if not as_json:
        print_text(change.diff() or f"nothing to do: {change.settings.path} is as it should be", indent=0)
    if asks and not _agreed():
        raise Refusal("nothing was written: say y, or --yes")
    made = not (dry_run or change.nothing)
    if made:
        installing.carry_out(change, origins, keep=keep)
    if as_json:
        print_json({"file": str(change.settings.path), "changed": made, "diff": change.diff()})
    return made and not as_json


def _agreed() -> bool:
    sys.stdout.write("Write this? [y/N] ")
    sys.stdout.flush()
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def _settings(*, user: bool) -> Settings:
    return installing.look_at(_file(user=user), within=None if user else Path.cwd())


def _file(*, user: bool) -> Path:
    """Of the project: the settings that are nobody else's, as paths of this machine are in our entries."""
    if not user:
        return Path.cwd() / ".claude" / "settings.local.json"
    return Path(os.environ.get("CLAUDE_CONFIG_DIR") or Path.home() / ".claude") / "settings.json"


@contextlib.contextmanager
def _in_a_sentence() -> Iterator[None]:
    try:
        yield
    except SettingsError as error:
        raise Refusal(str(error), Exit.BAD_INPUT) from error
