"""Runs the real CLIs on their own, with our hooks: what their sub-agents are told, and what is known of them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from server import Server, Step
from stage import ANSWER, dress

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CHECKS = ("installed", "sub-agent inherits", "search finds", "tree with files", "silent without", "taken out")
UNDERSTUDY = [sys.executable, "-m", "understudy.gateway.cli"]
SETTINGS = b'{\n  "permissions": {"deny": ["WebFetch"]}\n}'
_SAID = "The blue heron nests at tarn 7741."
_SEARCH = "mcp__understudy__session_search"
_PATIENCE = 90.0


class Hooked:
    """Claude Code in a folder of its own, with hooks that our own command has put into its settings."""

    def __init__(self, folder: Path, *, over_http: bool) -> None:
        self.home, self.project, self.store = folder / "home", folder / "project", folder / "agents.db"
        self.home.mkdir()
        (self.project / ".claude").mkdir(parents=True)
        (self.project / "hello.txt").write_text("the quick brown fox\n")
        self.settings = self.project / ".claude" / "settings.local.json"
        self.settings.write_bytes(SETTINGS)
        self.name = "claude, HTTP hooks" if over_http else "claude, commands"
        self.options = ["--http"] if over_http else []
        self.held: dict[str, str] = {}

    def run(self) -> dict[str, str]:
        """Every check."""
        with Server(self._scenes()) as server:
            part = dress("claude", server.url, self.home, self.project, "true")
            env = {**part.env, **_plain(self.home), "ENABLE_TOOL_SEARCH": "false"}
            with serving(self.store, env):
                done = self._understudy("hook", "install", "--harness", "claude-code", "--yes", *self.options, env=env)
                there = self.settings.read_text()
                token = (self.store.parent / f"{self.store.name}.token").read_text().strip()
                self._note("installed", done.returncode == 0 and '"WebFetch"' in there and token not in there, done)
                self._offer_tools()
                told = self._claude({**env, "UNDERSTUDY_TOKEN": token} if self.options else env)
                self._look_at(server.bodies, told)
                self._look_at_the_tree(env)
            server.bodies.clear()
            told = self._claude(env)
            self._note("silent without", told.returncode == 0 and not told.stderr.strip(), told)
            done = self._understudy("hook", "uninstall", "--yes", env=env)
            self._note("taken out", self.settings.read_bytes() == SETTINGS, done)
        return self.held

    def _scenes(self) -> dict[str, list[Step]]:
        look = Step(tool=_SEARCH, arguments={"query": "heron"})
        prompt = {"description": "read a file", "prompt": "Play [[scene:child]]", "subagent_type": "general-purpose"}
        return {
            "parent": [look, Step(tool="Agent", arguments={**prompt, "run_in_background": False}), Step(ANSWER)],
            "child": [Step(tool="Read", arguments={"file_path": str(self.project / "hello.txt")}), Step(ANSWER)],
        }

    def _offer_tools(self) -> None:
        """As somebody would write it who wants to search from Claude Code."""
        command = {"command": sys.executable, "args": [*UNDERSTUDY[1:], "mcp", "--db", str(self.store)]}
        (self.project / ".mcp.json").write_text(json.dumps({"mcpServers": {"understudy": command}}))

    def _claude(self, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
        prompt = f"{_SAID} Play [[scene:parent]]"
        allowed = ["--allowedTools", "Read", "Agent", _SEARCH]
        return subprocess.run(
            ["claude", "-p", prompt, *allowed],
            cwd=self.project, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_PATIENCE,
            check=False,
        )  # fmt: skip

    def _look_at(self, bodies: list[dict[str, Any]], told: object) -> None:
        """At what was on the wire."""
        firsts = {scene: _first_of(bodies, scene) for scene in ("parent", "child")}
        inherited = [line for line in _lines(firsts["child"]) if line.startswith("│ user: ") and _SAID in line]
        headed = "## Inherited from Parent Session" in _lines(firsts["child"])
        main = "Inherited from Parent Session" in json.dumps(firsts["parent"])
        self._note("sub-agent inherits", bool(inherited) and headed and not main, (told, firsts["child"]))
        results = [text for body in bodies for text in _results(body)]
        self._note("search finds", any("7741" in text and "claude-code:" in text for text in results), results)

    def _look_at_the_tree(self, env: dict[str, str]) -> None:
        roots = json.loads(self._understudy("tree", "--json", env=env).stdout)["items"]
        tree = self._understudy("tree", roots[0]["session_key"], "--json", env=env).stdout if len(roots) == 1 else ""
        file = str(self.project / "hello.txt")
        root = json.loads(tree or "{}")
        children = root.get("sessions", [])
        shown = [one["files"] for one in (root, *children) if "files" in one]
        self._note("tree with files", len(children) == 1 and shown == [[file], [file]], (roots, tree))
        print(self._understudy("tree", roots[0]["session_key"], env=env).stdout, file=sys.stderr)

    def _understudy(self, *arguments: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
        env = {**env, "UNDERSTUDY_DB": str(self.store)}
        command = [*UNDERSTUDY, *arguments]
        return subprocess.run(command, cwd=self.project, env=env, capture_output=True, text=True, check=False)

    def _note(self, check: str, held: bool, seen: object) -> None:
        self.held[check] = "yes" if held else "NO"
        if not held:
            print(f"{self.name}: {check}: {seen}", file=sys.stderr)


class Listened(Hooked):
    """OpenCode, as its server tells of it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, over_http=False)
        self.name = "opencode, its stream"

    def run(self) -> dict[str, str]:
        """The checks that apply: it takes nothing from a listener."""
        self.held = dict.fromkeys(CHECKS, "-")
        with Server(self._scenes()) as server:
            env = {**dress("opencode", server.url, self.home, self.project, "true").env, **_plain(self.home)}
            with self._opencode(env) as url, serving(self.store, env, "--opencode", url):
                session = _post(f"{url}/session", {"title": "A session"})
                said = {"type": "text", "text": f"{_SAID} Play [[scene:parent]]"}
                _post(f"{url}/session/{session['id']}/message", {"parts": [said]})
                found = self._until("search", "heron", "--json", env=env, sign="7741")
                self._note("search finds", "7741" in found, found)
                self._until("tree", f"opencode:{session['id']}", env=env, sign="general subagent")
                self._look_at_the_tree(env)
        return self.held

    def _scenes(self) -> dict[str, list[Step]]:
        prompt = {"description": "read a file", "prompt": "Play [[scene:child]]", "subagent_type": "general"}
        read = Step(tool="read", arguments={"filePath": str(self.project / "hello.txt")})
        return {"parent": [Step(tool="task", arguments=prompt), Step(ANSWER)], "child": [read, Step(ANSWER)]}

    def _until(self, *arguments: str, env: dict[str, str], sign: str) -> str:
        """What a command prints once what it looks for has been heard; it is told as it happens, not before we ask."""
        for _ in range(60):
            said = self._understudy(*arguments, env=env).stdout
            if sign in said:
                break
        return said

    @contextmanager
    def _opencode(self, env: dict[str, str]) -> Iterator[str]:
        command = ["opencode", "serve", "--hostname", "127.0.0.1", "--port", "0"]
        with _running(command, {**env, "PWD": str(self.project)}, self.project) as process:
            yield _address(process)


@contextmanager
def serving(store: Path, env: dict[str, str], *options: str) -> Iterator[str]:
    """Our server, as a user starts it."""
    with _running([*UNDERSTUDY, "serve", "--port", "0", "--db", str(store), *options], env, store.parent) as process:
        yield _address(process)


@contextmanager
def _running(command: list[str], env: dict[str, str], folder: Path) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.terminate()


def _address(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.search(r"http://127\.0\.0\.1:\d+", line):
            return found[0]
    raise RuntimeError(f"{process.args} has not started")


def _plain(home: Path) -> dict[str, str]:
    return {"HOME": str(home), "TMPDIR": str(home), "PATH": os.environ["PATH"], "PYTHONUNBUFFERED": "1"}


def _post(url: str, body: object) -> Any:
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)  # noqa: S310 - on loopback
    with urllib.request.urlopen(request, timeout=_PATIENCE) as answer:  # noqa: S310 - likewise
        return json.load(answer)


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)


def _lines(body: dict[str, Any]) -> list[str]:
    return [line for text in _texts(body.get("messages")) for line in text.splitlines()]


def _first_of(bodies: list[dict[str, Any]], scene: str) -> dict[str, Any]:
    """The first request of a scene: the model has tools, and has not answered yet."""
    for body in bodies:
        asked = [m for m in body.get("messages", ()) if m.get("role") == "user"]
        answered = any(m.get("role") == "assistant" for m in body.get("messages", ()))
        if body.get("tools") and not answered and f"[[scene:{scene}]]" in json.dumps(asked):
            return body
    return {}


def _results(body: dict[str, Any]) -> Iterator[str]:
    for message in body.get("messages", ()):
        for block in message.get("content") if isinstance(message.get("content"), list) else ():
            if block.get("type") == "tool_result":
                yield json.dumps(block.get("content"))
