"""Whatever a command is given: it says what is wrong and what to do, with an exit code, and never a traceback."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from _program import PROGRAM, commands, understudy
from _scene import elsewhere  # noqa: F401 - fixtures
from _stage import MAIN, a_host

from understudy.actors.testing import ManualClock
from understudy.gateway.cli.refusal import Exit
from understudy.protocol import Spawn

if TYPE_CHECKING:
    from pathlib import Path

READING = {
    "runs": (),
    "show": ("r-1",),
    "tree": ("agent:atlas:main",),
    "search": ("loader",),
    "tail": (),
    "dead-letters": (),
}
"""Commands that look into the database, with arguments that could be right."""
ACTING = {"kill": ("r-1",), "follow-up": ("r-1", "more"), "replay": ("1",), "sweep": ()}
"""Commands that need a running server."""

MISTAKES: list[tuple[tuple[str, ...], Exit, str]] = [
    ((), Exit.BAD_INPUT, "Usage: understudy"),
    (("rnus",), Exit.BAD_INPUT, "Did you mean 'runs'"),
    (("demo", "twice"), Exit.BAD_INPUT, "unexpected extra argument"),
    # a database that cannot be one
    *(
        ((name, *rest, "--db", db), Exit.BAD_INPUT, words)
        for name, rest in READING.items()
        for db, words in (
            ("none.db", "does not exist: give the path"),
            ("folder", "is no file: give the path"),
            ("text.db", "left as it is"),
            ("empty.db", "is empty: give the path"),
            ("other.db", "another program: give another path"),
            ("x" * 5_000, "File name too long"),
        )
    ),
    *(
        (("doctor", "--db", db), Exit.NOT_SO, f"{words}")
        for db, words in (("none.db", "does not exist"), ("text.db", "left as it is"), ("damaged.db", "problems"))
    ),
    *(((name, *rest, "--db", "unreadable.db"), Exit.NOT_SO, "cannot be read") for name, rest in (
        ("runs", ("--json",)), ("tree", (MAIN,)),
    )),
    # nobody serves
    *(
        ((name, *rest), Exit.NOBODY_SERVES, "nobody serves agents.db")
        for name, rest in ACTING.items()
    ),
    *(
        ((name, *rest, "--db", "far.db"), Exit.NOBODY_SERVES, "start one with `understudy serve --db far.db`")
        for name, rest in ACTING.items()
    ),
    # ids that are none, or name nothing
    *(((name, *rest), Exit.BAD_INPUT, "run id 'No Run' is not allowed: use") for name, rest in (
        ("show", ("No Run",)), ("kill", ("No Run",)), ("follow-up", ("No Run", "more")), ("tail", ("--run", "No Run")),
    )),
    *(((name, *rest), Exit.NOT_SO, "there is no run r-404 in") for name, rest in (
        ("show", ("r-404",)), ("tail", ("--run", "r-404")),
    )),
    *(((name, "--session", "a b"), Exit.BAD_INPUT, "session key 'a b' is not allowed: use") for name in (
        "runs", "tail", "dead-letters",
    )),
    (("search", "x", "--session", "a b"), Exit.BAD_INPUT, "session key 'a b' is not allowed: use"),
    (("tree", "\x1b[2J"), Exit.BAD_INPUT, "session key '\\x1b[2J' is not allowed: use"),
    (("tree", "agent:nobody"), Exit.NOT_SO, "there is no session agent:nobody in"),
    (("replay", "seven"), Exit.BAD_INPUT, "'ID'"),
    (("replay", "0"), Exit.BAD_INPUT,  "'ID'"),
    # values out of range
    *(((name, *rest, "--limit", limit), Exit.BAD_INPUT, "--limit") for name, rest in (
        ("runs", ()), ("dead-letters", ()), ("search", ("x",)),
    ) for limit in ("0", "-1", "many", "99999999999999999999")),
    *(((name, "--cursor", "next"), Exit.BAD_INPUT, "cursor 'next' is not one of ours") for name in (
        "runs", "dead-letters",
    )),
    (("runs", "--status", "odd"), Exit.BAD_INPUT, "'pending', 'running', 'completed', 'failed'"),
    (("search", " "), Exit.BAD_INPUT, "the query is empty: give a word"),
    (("search",), Exit.BAD_INPUT, "Missing argument 'QUERY'"),
    (("tail", "--interval", "0"), Exit.BAD_INPUT, "--interval"),
    (("kill", "r-1", "--reason", ""), Exit.BAD_INPUT, "--reason is empty: write"),
    (("follow-up", "r-1", " "), Exit.BAD_INPUT, "MESSAGE is empty: write"),
    (("follow-up", "r-1", "more", "--wait", "1000"), Exit.BAD_INPUT, "--wait"),
    (("sweep", "--fast"), Exit.BAD_INPUT, "No such option"),
    # a host that cannot be
    (("serve", "--app", "runners"), Exit.BAD_INPUT, "write it as module:attribute"),
    (("serve", "--app", "nowhere:runners"), Exit.BAD_INPUT, "No module named 'nowhere'"),
    (("serve", "--app", "sys:nothing"), Exit.BAD_INPUT, "has no attribute 'nothing'"),
    (("serve", "--app", "sys:path"), Exit.BAD_INPUT, "is list: make it a mapping of names to runners"),
    (("serve", "--config", "wrong.toml"), Exit.BAD_INPUT, "max_spawn_depth = 99 is not allowed: use"),
    (("serve", "--port", "70000"), Exit.BAD_INPUT, "--port"),
    *(
        (("serve", "--host", host), Exit.BAD_INPUT, f"host {host} is no loopback address: use 127.0.0.1")
        for host in ("example.org", "192.0.2.1", "0.0.0.0")  # noqa: S104 - refused
    ),
    (("serve", "--db", "folder"), Exit.BAD_INPUT, "folder is a folder: give the path"),
    (("serve", "--db", "text.db"), Exit.BAD_INPUT, "left as it is"),
    (("serve", "--db", "nowhere/agents.db"), Exit.BAD_INPUT, "is no folder: make it, or give another path"),
    # a client's server
    (("mcp", "--session", "a b"), Exit.BAD_INPUT, "session key 'a b' is not allowed: use"),
    (("mcp", "--agent", " "), Exit.BAD_INPUT, "--agent is empty: name one, or leave it out"),
    (("mcp", "--db", "folder"), Exit.BAD_INPUT, "folder is a folder: give the path"),
    (("mcp", "--db", "x" * 5_000), Exit.BAD_INPUT, "File name too long"),
    (("mcp", "--port", "1"), Exit.BAD_INPUT, "No such option"),
    # a harness's hooks
    (("hook", "install", "--harness", "vim"), Exit.BAD_INPUT, "'claude-code'"),
    (("hook", "install", "--json"), Exit.BAD_INPUT, "--json does not ask: add --yes, or --dry-run"),
    (("hook", "uninstall", "--db", "agents.db"), Exit.BAD_INPUT, "No such option"),
    (("hook", "status", "--user"), Exit.BAD_INPUT, "No such option"),
    (("hook", "run", "claude-code"), Exit.BAD_INPUT, "Missing argument 'EVENT'"),
    # configurations
    *((("config", *rest), Exit.BAD_INPUT, words) for file, words in (
        ("none.toml", "none.toml: cannot be read"),
        ("broken.toml", "broken.toml: is not TOML"),
        ("wrong.toml", "max_spawn_depth = 99 is not allowed: use"),
        ("unknown.toml", "max_spawn_deph"),
    ) for rest in (("check", file), ("show", "--config", file))),
    (("config", "rewrite"), Exit.BAD_INPUT, "No such command"),
]  # fmt: skip


@pytest.fixture(scope="module")
def odd_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a good database, and files that are not what they should be."""
    folder = tmp_path_factory.mktemp("odd")
    with a_host(ManualClock(), store=folder / "agents.db") as runtime:
        runtime.session(MAIN).spawn(Spawn(task="do it")).result(timeout=60)
    (folder / "folder").mkdir()
    (folder / "empty.db").touch()
    (folder / "text.db").write_text("no database at all\n" * 300)
    for copy in ("damaged.db", "unreadable.db"):
        (folder / copy).write_bytes((folder / "agents.db").read_bytes())
    for name, statement in (
        ("other.db", "CREATE TABLE things (id)"),
        ("damaged.db", "DELETE FROM results"),
        ("unreadable.db", "UPDATE runs SET packet = '{'"),
    ):
        with closing(sqlite3.connect(folder / name)) as connection, connection:
            connection.execute(statement)
    (folder / "broken.toml").write_text("max_spawn_depth = = 2")
    (folder / "wrong.toml").write_text("max_spawn_depth = 99")
    (folder / "unknown.toml").write_text("max_spawn_deph = 2")
    return folder


@pytest.mark.parametrize(("arguments", "code", "words"), MISTAKES, ids=lambda part: repr(part)[:60])
def test_a_mistake_is_one_sentence_and_an_exit_code(
    arguments: tuple[str, ...], code: Exit, words: str, odd_files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For every command; and nothing is created, changed or printed as a result."""
    monkeypatch.chdir(odd_files)
    before = {file.name: file.stat().st_size for file in odd_files.iterdir()}
    told = understudy(*arguments)
    listing = told.out if arguments[:1] == ("doctor",) else ""  # it goes on to look at everything else
    assert words in " ".join((listing + told.err).split())
    assert told.exit_code == code
    assert told.out == listing
    assert not {"\x1b", "Traceback"} & {*told.err, *told.err.split()}
    assert {file.name: file.stat().st_size for file in odd_files.iterdir()} == before


def test_no_command_is_left_out() -> None:
    """A new one needs its mistakes in the table above."""
    names = set(commands())
    groups = {"config", "hook"}
    tried = {" ".join(arguments[: 2 if arguments[0] in groups else 1]) for arguments, _, _ in MISTAKES if arguments}
    assert names <= tried


@pytest.mark.slow
@pytest.mark.parametrize(
    ("missing", "command", "words"),
    [
        ("typer", "runs", "the command line needs typer: pip install 'understudy[cli]'"),
        ("fastapi", "serve", 'there is no fastapi: run `pip install "understudy[server]"`'),
        ("mcp", "mcp", 'there is no mcp: run `pip install "understudy[mcp]"`'),
    ],
)
def test_without_its_extra_a_command_is_one_sentence(missing: str, command: str, words: str) -> None:
    """Which says what to install. Slow: it starts a Python."""
    program = (
        "import sys\n"
        f"sys.modules[{missing!r}] = None\n"  # as if it were not installed: importing it raises ModuleNotFoundError
        "from understudy.gateway.cli.__main__ import main\n"
        "main()\n"
    )
    ran = subprocess.run([sys.executable, "-c", program, command], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (2, "", f"understudy: {words}\n")


@pytest.mark.slow
def test_a_mistake_in_a_real_process(tmp_path: Path) -> None:
    """The program that people start says the same. Slow: it starts a Python."""
    ran = subprocess.run([*PROGRAM, "runs"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == (
        "understudy: agents.db does not exist: give the path of a database that a runtime has made, "
        "with --db PATH or UNDERSTUDY_DB\n"
    )
