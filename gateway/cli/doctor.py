"""``doctor``: is everything there, and is it well?"""

import re
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Literal

from understudy.actors.host import surely_dead
from understudy.actors.runners.cli import inspect_clis
from understudy.gateway.cli.client import find_server
from understudy.gateway.cli.looking import open_view
from understudy.gateway.cli.options import DEFAULT_DB, AsJson, Db
from understudy.gateway.cli.refusal import Refusal
from understudy.gateway.cli.screen import Column, print_json, print_table
from understudy.persistence import StoreError

Verdict = Literal["ok", "note", "broken"]

# Extras for those who work on Understudy itself.
_OF_THE_HOUSE = {"test", "check", "bench", "judge", "examples"}
_EXTRA = re.compile(r"""^([\w.-]+)(?:\[[^]]*\])?[^;]*;.*\bextra == ['"]([\w-]+)['"]""")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at; a note is worth knowing, and nothing to repair."""

    what: str
    verdict: Verdict
    detail: str


def doctor(*, db: Db = None, as_json: AsJson = False) -> None:
    """Check that everything is there, and well.

    Python, SQLite, extras, the database and the server; exit code 1 if something is broken.
    """
    findings = [*_python(), *_sqlite(), *_extras(), *_agent_clis(), *_database(db), *_server(db)]
    broken = [finding for finding in findings if finding.verdict == "broken"]
    if as_json:
        print_json({"ok": not broken, "findings": [asdict(finding) for finding in findings]})
    else:
        rows = [(finding.what, finding.verdict, finding.detail) for finding in findings]
        print_table([Column("WHAT"), Column("IS"), Column("DETAIL", "fold")], rows)
    if broken:
        raise Refusal(f"{len(broken)} of {len(findings)} are broken: {', '.join(finding.what for finding in broken)}")


def _python() -> Iterator[Finding]:
    yield Finding("understudy", "ok", version("understudy"))
    yield Finding("python", "ok", f"{sys.version.split()[0]} at {sys.executable}")


def _sqlite() -> Iterator[Finding]:
    yield Finding("sqlite", "ok", sqlite3.sqlite_version)
    with closing(sqlite3.connect(":memory:")) as connection:
        try:
            connection.execute("CREATE VIRTUAL TABLE probe USING fts5 (text)")
        except sqlite3.OperationalError as error:
            yield Finding("full-text search", "broken", f"this SQLite has no FTS5 ({error}): use a Python that has it")
        else:
            yield Finding("full-text search", "ok", "FTS5")


def _extras() -> Iterator[Finding]:
    """What the package itself says it can use, and whether that is installed."""
    wanted: dict[str, list[str]] = {}
    for requirement in requires("understudy") or []:
        found = _EXTRA.match(requirement)
        if found is not None and found[2] not in _OF_THE_HOUSE:
            wanted.setdefault(found[2], []).append(found[1])
    for extra, packages in wanted.items():
        there = {package: _version(package) for package in packages}
        if None in there.values():
            yield Finding(f"extra {extra}", "note", f"not installed: pip install 'understudy[{extra}]'")
        else:
            yield Finding(f"extra {extra}", "ok", ", ".join(f"{name} {known}" for name, known in there.items()))


def _agent_clis() -> Iterator[Finding]:
    for cli in inspect_clis():
        known = f"{cli.version} at {cli.path}" if cli.installed else f"not installed: {cli.install}"
        yield Finding(f"cli {cli.name}", "ok" if cli.installed else "note", known)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _database(db: Path | None) -> Iterator[Finding]:
    if db is None and not DEFAULT_DB.exists():
        yield Finding("database", "note", f"no {DEFAULT_DB} here: name one with --db PATH or UNDERSTUDY_DB")
        return
    try:
        view = open_view(db)
    except (Refusal, StoreError, OSError) as error:
        yield Finding("database", "broken", str(error))
        return
    with view:
        problems = view.problems()
        detail = (
            f"{view.path}: {len(problems)} problems: {'; '.join(problems)}" if problems else f"{view.path} is whole"
        )
        yield Finding("database", "broken" if problems else "ok", detail)
        for host in [] if problems else view.hosts.running():
            gone = surely_dead(host)
            words = "died without signing off; the next start finishes its work" if gone else "works on it"
            yield Finding("host", "note" if gone else "ok", f"{host.host} (pid {host.pid}) {words}")


def _server(db: Path | None) -> Iterator[Finding]:
    server = find_server(db)
    if server is None:
        yield Finding("server", "note", "none runs: `understudy serve` starts one")
        return
    try:
        answer = server.ask("/api/health")
    except Refusal as error:
        yield Finding("server", "broken", str(error))
        return
    words = f"{server.url} (pid {server.pid})"
    yield (
        Finding("server", "ok", words)
        if answer.ok
        else Finding(
            "server",
            "broken",
            f"{words} answers with {answer.status}: {answer.document.get('detail', 'no reason given')}",
        )
    )
