"""Claude Code's hooks: every payload inside a sub-agent has its ``agent_id``, and its parent's ``session_id``."""

from __future__ import annotations

import json
import os
import stat
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from understudy.gateway.harness.sighting import Sighting, What, key, needed, text_of
from understudy.persistence.ingest import readable
from understudy.protocol import Receipt, SessionKey
from understudy.protocol.model import Turn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from understudy.protocol.files import FileMode

HARNESS: Final = "claude-code"
_DELEGATING = frozenset({"Agent", "Task"})
_TOUCHING: Mapping[str, FileMode] = {
    "Read": "read",
    "NotebookRead": "read",
    "Write": "write",
    "Edit": "edit",
    "MultiEdit": "edit",
    "NotebookEdit": "edit",
}
_LARGEST_META = 65_536
_PATHS = ("file_path", "notebook_path", "path")
_EVENTS: Mapping[str, What] = {
    "SessionStart": "opened",
    "SubagentStart": "opened",
    "UserPromptSubmit": "said",
    "PreToolUse": "delegating",
    "PostToolUse": "used",
    "PreCompact": "compacting",
    "Stop": "answered",
    "SubagentStop": "closed",
    "SessionEnd": "closed",
}
# The harness speaks to its own model in the user's role: none of this was said by anybody.
_NOT_SAID = ("<task-notification>", "<system-reminder>", "<command-name>", "<local-command-stdout>")


def read(payload: Mapping[str, object]) -> Sighting | None:
    """What a hook was told; None for what concerns nobody here."""
    event = needed(payload, "hook_event_name")
    what = _EVENTS.get(event)
    session_id, agent = needed(payload, "session_id"), text_of(payload, "agent_id")
    tool = text_of(payload, "tool_name")
    if what is None or (event == "SubagentStop" and not text_of(payload, "agent_type")):
        return None  # without a type it is the compaction's own, which was never started
    if what == "delegating" and tool not in _DELEGATING:
        what = "used"  # it is about to be: what was said before is on disk, and a search should find it
    root = key(HARNESS, session_id)
    session = root if agent is None else sub_agent(session_id, agent)
    transcript = text_of(payload, "transcript_path")
    if agent is not None:
        given = "agent_transcript_path" in payload
        transcript = text_of(payload, "agent_transcript_path") if given else beside(transcript, session_id, agent)
    child = _child(payload, session_id) if tool in _DELEGATING else None
    return Sighting(
        harness=HARNESS,
        what="delegated" if child is not None else what,
        session=session,
        root=root,
        project=text_of(payload, "cwd"),
        transcript=transcript,
        root_transcript=text_of(payload, "transcript_path"),
        said=_said(payload, what),
        parent=_named_parent(transcript, session_id) if agent is not None else None,
        child=child,
        call=text_of(payload, "tool_use_id"),
        files=_files(payload) if event == "PostToolUse" else (),
        title=text_of(payload, "agent_type") if agent is not None else None,
        forgetful=event == "SessionStart" and payload.get("source") == "compact",
    )


def sub_agent(session_id: str, agent: str) -> SessionKey:
    """The key of a sub-agent's session."""
    return key(HARNESS, session_id, "subagent", agent)


def written_down(sighting: Sighting) -> Iterator[Sighting]:
    """The sub-agents of a session that stand beside its transcript, each after its parent."""
    if sighting.transcript is None or sighting.in_sub_agent:
        return
    session_id = Path(sighting.transcript).stem
    files = (Path(sighting.transcript).parent / session_id / "subagents").glob("agent-*.jsonl")
    with suppress(OSError):
        for file in sorted((file for file in files if file.is_file() and not file.is_symlink()), key=_depth):
            parent = _named_parent(str(file), session_id)
            if parent is not None:  # a compaction's own have none
                session = sub_agent(session_id, file.stem.removeprefix("agent-"))
                yield replace(sighting, what="used", session=session, transcript=str(file), parent=parent, said=None)


def parse_line(line: str, *, told: Callable[[str], bool] = lambda _agent: False) -> Turn | None:
    """A line of a transcript as a turn; None for what the harness wrote to itself.

    Also for what a sub-agent came back with, where ``told`` says that its last words are known already.
    """
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not _is_said(entry) or told(_came_back(entry) or ""):
        return None
    message = entry.get("message")
    content = message.get("content") if isinstance(message, dict) else None
    text = readable(content)
    if not text.strip() or text.lstrip().startswith(_NOT_SAID):
        return None
    if entry["type"] == "assistant":
        return Turn("assistant", text)
    answers = isinstance(content, list) and any(
        isinstance(part, dict) and part.get("type") == "tool_result" for part in content
    )
    return Turn("tool" if answers else "user", text)


def _is_said(entry: object) -> bool:
    # Summaries stand for turns that are stored; meta lines are the harness's own words.
    return (
        isinstance(entry, dict)
        and entry.get("type") in {"user", "assistant"}
        and not (entry.get("isMeta") or entry.get("isCompactSummary"))
    )


def _came_back(entry: Mapping[str, object]) -> str | None:
    """The sub-agent whose end a line tells."""
    result = entry.get("toolUseResult")
    return text_of(result, "agentId") if isinstance(result, dict) else None


def _said(payload: Mapping[str, object], what: What) -> Turn | None:
    if what == "said":
        prompt = text_of(payload, "prompt")
        return None if prompt is None or prompt.lstrip().startswith(_NOT_SAID) else Turn("user", prompt)
    last = text_of(payload, "last_assistant_message")
    return None if last is None else Turn("assistant", last)


def _child(payload: Mapping[str, object], session_id: str) -> SessionKey | None:
    """The sub-agent that a finished delegation has made; background ones are named as soon as they are launched."""
    response = payload.get("tool_response")
    agent = text_of(response, "agentId") if isinstance(response, dict) else None
    return None if agent is None else sub_agent(session_id, agent)


def beside(transcript: str | None, session_id: str, agent: str) -> str | None:
    """Where a sub-agent's transcript stands, beside its parent's."""
    if transcript is None:
        return None
    return str(Path(transcript).parent / session_id / "subagents" / f"agent-{agent}.jsonl")


def _named_parent(transcript: str | None, session_id: str) -> SessionKey | None:
    """The parent by the meta file beside a sub-agent's transcript; None while there is none, or it names nobody."""
    if transcript is None:
        return None
    meta = _small_object(Path(transcript).with_suffix(".meta.json"))
    if meta is None or "spawnDepth" not in meta:
        return None
    above = text_of(meta, "parentAgentId")
    return key(HARNESS, session_id) if above is None else sub_agent(session_id, above)


def _depth(transcript: Path) -> int:
    depth = (_small_object(transcript.with_suffix(".meta.json")) or {}).get("spawnDepth")
    return depth if isinstance(depth, int) else 0


def _small_object(path: Path) -> dict[str, object] | None:
    """The JSON object in a small file; None for anything else that may be there."""
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            found = json.loads(file.read(_LARGEST_META)) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else None
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _files(payload: Mapping[str, object]) -> tuple[Receipt, ...]:
    """What a tool touched: hooks after a tool are only called where it worked."""
    mode, given = _TOUCHING.get(text_of(payload, "tool_name") or ""), payload.get("tool_input")
    if mode is None or not isinstance(given, dict):
        return ()
    path = next((found for name in _PATHS if (found := text_of(given, name))), None)
    return () if path is None else (Receipt(path, mode),)
