"""Claude Code's hooks: every payload inside a sub-agent has its ``agent_id``, and its parent's ``session_id``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Final

from understudy.gateway.harness.sighting import Sighting, What, key, needed, text_of
from understudy.persistence.ingest import readable
from understudy.protocol import Receipt, SessionKey
from understudy.protocol.model import Turn

if TYPE_CHECKING:
    from collections.abc import Mapping

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
    if what is None or (what == "delegating" and tool not in _DELEGATING):
        return None
    if event == "SubagentStop" and not text_of(payload, "agent_type"):
        return None  # the compaction's own, which was never started
    root = key(HARNESS, session_id)
    session = root if agent is None else sub_agent(session_id, agent)
    transcript = text_of(payload, "transcript_path")
    if agent is not None:
        transcript = text_of(payload, "agent_transcript_path") or _beside(transcript, session_id, agent)
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
        files=_files(payload) if what == "used" else (),
        title=text_of(payload, "agent_type") if agent is not None else None,
    )


def sub_agent(session_id: str, agent: str) -> SessionKey:
    """The key of a sub-agent's session."""
    return key(HARNESS, session_id, "subagent", agent)


def parse_line(line: str) -> Turn | None:
    """A line of a transcript as a turn; None for what the harness wrote to itself."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(entry, dict) or entry.get("type") not in {"user", "assistant"}:
        return None
    # Summaries stand for turns that are stored; meta lines are the harness's own words.
    if entry.get("isMeta") or entry.get("isCompactSummary"):
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


def _beside(transcript: str | None, session_id: str, agent: str) -> str | None:
    """Where a sub-agent's transcript stands, beside its parent's."""
    if transcript is None:
        return None
    return str(Path(transcript).parent / session_id / "subagents" / f"agent-{agent}.jsonl")


def _named_parent(transcript: str | None, session_id: str) -> SessionKey | None:
    """The parent by the meta file beside a sub-agent's transcript; None while there is none, or it names nobody."""
    if transcript is None:
        return None
    try:
        meta = json.loads(Path(transcript).with_suffix(".meta.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(meta, dict) or "spawnDepth" not in meta:
        return None
    above = text_of(meta, "parentAgentId")
    return key(HARNESS, session_id) if above is None else sub_agent(session_id, above)


def _files(payload: Mapping[str, object]) -> tuple[Receipt, ...]:
    """What a tool touched: hooks after a tool are only called where it worked."""
    mode, given = _TOUCHING.get(text_of(payload, "tool_name") or ""), payload.get("tool_input")
    if mode is None or not isinstance(given, dict):
        return ()
    path = next((found for name in _PATHS if (found := text_of(given, name))), None)
    return () if path is None else (Receipt(path, mode),)
