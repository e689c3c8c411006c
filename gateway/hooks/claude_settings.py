"""Our entries in Claude Code's settings: which there are, how they get in, and how they get out again."""

from __future__ import annotations

import json
import re
import shlex
import sys
from typing import TYPE_CHECKING, Any

from understudy.gateway.hooks.json_text import parsed, with_added, without

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from understudy.gateway.hooks.json_text import Path as Way

HARNESS = "claude-code"
TOKEN_VARIABLE = "UNDERSTUDY_TOKEN"  # noqa: S105 - the name of one
TIMEOUT_SECONDS = 2
"""After so long the harness itself goes on."""

# A search must find what was said before it, and a sub-agent must know who started it: these are told before the tool.
_BEFORE = "Agent|Task|mcp__.*__session_search"
_AFTER = "Agent|Task|Read|Write|Edit|MultiEdit|NotebookRead|NotebookEdit"
EVENTS: dict[str, str | None] = {
    "SessionStart": None,
    "UserPromptSubmit": None,
    "PreToolUse": _BEFORE,
    "PostToolUse": _AFTER,
    "SubagentStart": None,
    "SubagentStop": None,
    "PreCompact": None,
    "Stop": None,
    "SessionEnd": None,
}
"""What we are told of, and of which tools."""
NEVER_OVER_HTTP = frozenset({"SessionStart", "SessionEnd"})
"""The first never arrives so; where nobody serves, of the second an error is shown to the user."""

_COMMAND = re.compile(rf" -m understudy\.gateway\.cli hook run {HARNESS} ")
_ADDRESS = f"/api/hooks/{HARNESS}/"
_ASKED = re.compile(rf"http://[^/]+{_ADDRESS}\w+")


class SettingsError(ValueError):
    """The settings cannot be changed; the message says why, and what to do."""


def entries(database: Path, *, token_file: Path | None = None, url: str | None = None) -> dict[str, dict[str, Any]]:
    """What stands in the settings for each event; with ``url`` as HTTP hooks, for all events that have them.

    No token is in there: a command reads it from its file, an HTTP hook gets it from the harness's environment.
    """
    found: dict[str, dict[str, Any]] = {}
    for event, tools in EVENTS.items():
        over_http = url is not None and event not in NEVER_OVER_HTTP
        hook = _http_hook(f"{url}{_ADDRESS}{event}") if over_http else _command_hook(event, database, token_file)
        found[event] = ({} if tools is None else {"matcher": tools}) | {"hooks": [hook]}
    return found


def installed(text: str) -> str:
    """Settings that have our entries, as they are now; empty where there are none."""
    ours = [_at(parsed(text), way) for way in _ours(_settings(text))]
    return json.dumps(ours)


def summary(text: str) -> str:
    """Which kinds of ours settings have, in a word or two; empty for none."""
    settings = _settings(text.removeprefix("\ufeff").strip() or "{}")
    found = [_at(settings, way) for way in _ours(settings)]
    hooks = [hook for entry in found if isinstance(entry, dict) for hook in entry.get("hooks", [entry])]
    kinds = [str(hook.get("type")) for hook in hooks]
    return ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))


def with_entries(text: str, wanted: dict[str, dict[str, Any]]) -> str:
    """``text`` with these entries besides everything that is somebody else's."""
    settings = _settings(text)
    if "hooks" not in settings:
        return with_added(text, (), "hooks", {event: [entry] for event, entry in wanted.items()})
    for event, entry in wanted.items():
        if event in settings["hooks"]:
            text = with_added(text, ("hooks", event), None, entry)
        else:
            text = with_added(text, ("hooks",), event, [entry])
    return text


def without_entries(text: str, before: str | None = None) -> str:
    """``text`` without ours. What is then empty goes too, unless it was there ``before``."""
    known = None if before is None else _settings(before).get("hooks")
    touched = set()
    while (way := next(_ours(_settings(text)), None)) is not None:
        touched.add(way[1])
        text = without(text, way)
    for event in touched:
        if _settings(text)["hooks"][event] == [] and event not in (known or {}):
            text = without(text, ("hooks", event))
    if touched and _settings(text)["hooks"] == {} and known is None:
        text = without(text, ("hooks",))
    return text


def _ours(settings: dict[str, Any]) -> Iterator[Way]:
    """The way to each entry of ours; where somebody put another hook beside it, to the hook."""
    for event, entries_ in settings.get("hooks", {}).items():
        for number, entry in enumerate(entries_):
            hooks = entry.get("hooks") if isinstance(entry, dict) else None
            if not isinstance(hooks, list):
                continue
            mine = [_is_ours(hook) for hook in hooks]
            if mine and all(mine):
                yield "hooks", event, number
            elif any(mine):
                yield "hooks", event, number, "hooks", mine.index(True)


def _is_ours(hook: object) -> bool:
    if not isinstance(hook, dict):
        return False
    if hook.get("type") == "http":
        return _ASKED.fullmatch(str(hook.get("url"))) is not None
    return hook.get("type") == "command" and _COMMAND.search(str(hook.get("command"))) is not None


def _command_hook(event: str, database: Path, token_file: Path | None) -> dict[str, Any]:
    # -P: the folder it runs in is a project's, and must not be where modules come from.
    words = [sys.executable, "-P", "-m", "understudy.gateway.cli", "hook", "run", HARNESS, event, "--db", str(database)]
    words += [] if token_file is None else ["--token-file", str(token_file)]
    return {"type": "command", "command": shlex.join(words), "timeout": TIMEOUT_SECONDS}


def _http_hook(url: str) -> dict[str, Any]:
    return {
        "type": "http",
        "url": url,
        "headers": {"Authorization": f"Bearer ${TOKEN_VARIABLE}"},
        "allowedEnvVars": [TOKEN_VARIABLE],
        "timeout": TIMEOUT_SECONDS,
    }


def _settings(text: str) -> dict[str, Any]:
    """The settings, if they are what the harness takes."""
    try:
        settings = parsed(text)
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"is no JSON ({error})") from None
    if not isinstance(settings, dict):
        raise SettingsError("is no JSON object")
    hooks = settings.get("hooks", {})
    if not isinstance(hooks, dict):
        raise SettingsError('has "hooks" that are no object')
    for event, found in hooks.items():
        if not isinstance(found, list):
            raise SettingsError(f'has "hooks" in which {event!r} is no list')
    return settings


def _at(document: Any, way: Way) -> object:
    for step in way:
        document = document[step]
    return document
