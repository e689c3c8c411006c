"""OpenCode, OpenClaw, Codex: lineage as each of them tells it, and quiet where it tells none."""

from __future__ import annotations

from typing import Any

import pytest

from understudy.gateway.harness import Continuity, OpenCodeEvents, codex, openclaw
from understudy.gateway.harness.sighting import UnreadablePayloadError
from understudy.persistence import MemoryStore
from understudy.protocol import RuntimeConfig, SessionKey


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(wall_ms=lambda: 1)


@pytest.fixture
def continuity(store: MemoryStore) -> Continuity:
    return Continuity(store, wall_ms=lambda: 1, config=RuntimeConfig())


def created(session: str, parent: str | None = None) -> dict[str, Any]:
    info = {"id": session, "directory": "/p", "title": f"About {session}"}
    return {"type": "session.created", "properties": {"info": info if parent is None else {**info, "parentID": parent}}}


def message(session: str, number: str, role: str, **more: Any) -> dict[str, Any]:
    return {
        "type": "message.updated",
        "properties": {"info": {"id": number, "sessionID": session, "role": role, **more}},
    }


def part(session: str, number: str, kind: str, **more: Any) -> dict[str, Any]:
    found = {"id": f"{number}-{kind}", "sessionID": session, "messageID": number, "type": kind, **more}
    return {"type": "message.part.updated", "properties": {"part": found}}


def test_opencode_names_parents_and_speaks_in_pieces(store: MemoryStore, continuity: Continuity) -> None:
    """A child inherits what was said before it began; a message is stored once, whole; files go to the parent."""
    events = OpenCodeEvents()
    stream = [
        created("ses_a"),
        message("ses_a", "m1", "user"),
        part("ses_a", "m1", "text", text="How is"),
        part("ses_a", "m1", "text", text="How is config loaded?"),
        message("ses_a", "m2", "assistant", parentID="m1"),
        part("ses_a", "m2", "text", text="I ask somebody."),
        message("ses_a", "m2", "assistant", parentID="m1", time={"completed": 5}),
        message("ses_a", "m2", "assistant", parentID="m1", time={"completed": 5}),
        created("ses_b", "ses_a"),
        part("ses_b", "m3", "tool", tool="read", state={"status": "completed", "input": {"filePath": "/p/a.py"}}),
        part("ses_b", "m3", "tool", tool="read", state={"status": "error", "input": {"filePath": "/p/b.py"}}),
        {"type": "session.deleted", "properties": {"info": {"id": "ses_b", "parentID": "ses_a", "directory": "/p"}}},
        {"type": "server.heartbeat"},
    ]
    contexts = []
    for event in stream:
        sighting = events.read(event)
        if sighting is not None:
            contexts.append(continuity.observe(sighting).context)
    assert store.transcripts.text("opencode:ses_a") == "user: How is config loaded?\nassistant: I ask somebody."
    child = store.sessions.get("opencode:ses_b")
    assert child is not None
    assert (child.parent_session_key, child.depth, child.parent_inferred) == ("opencode:ses_a", 1, False)
    (inherited,) = [context for context in contexts if context is not None]
    assert "About ses-a" in inherited or "About ses_a" in inherited
    assert "I ask somebody." in inherited
    parent = store.sessions.working_context("opencode:ses_a")
    assert parent is not None
    assert parent.recent_files == ("/p/a.py",)


@pytest.mark.parametrize(
    ("key", "parent"),
    [
        ("agent:atlas:main", None),
        ("agent:atlas:subagent:u1", "agent:atlas:main"),
        ("agent:atlas:subagent:u1:subagent:u2", "agent:atlas:subagent:u1"),
        ("user:subagent:u1", None),
        ("agent:atlas:subagent:", None),
    ],
)
def test_openclaws_keys_tell_their_parents(key: str, parent: str | None) -> None:
    """By their shape; another program's keys of a similar shape tell nothing."""
    assert openclaw.parent_of(SessionKey(key)) == parent


def test_openclaws_children_see_their_own_agents_data(store: MemoryStore, continuity: Continuity) -> None:
    """The agent that the key names is the scope; a child has its parent's."""
    for body in (
        {"event": "message", "session_key": "agent:atlas:main", "text": "The plan is secret."},
        {"event": "message", "session_key": "agent:other:main", "text": "Another plan."},
    ):
        continuity.observe(openclaw.read(body))
    reaction = continuity.observe(openclaw.read({"event": "session_start", "session_key": "agent:atlas:subagent:u1"}))
    assert reaction.context is not None
    assert "The plan is secret." in reaction.context
    record = store.sessions.get("agent:atlas:subagent:u1")
    assert record is not None
    assert record.agent_id == "atlas"
    assert [hit.session_key for hit in store.search("plan", agent_id="other")] == ["agent:other:main"]


def test_an_explicit_parent_counts_before_everything_else(store: MemoryStore, continuity: Continuity) -> None:
    """Whatever the key looks like."""
    sighting = openclaw.read({"event": "session_start", "session_key": "agent:atlas:subagent:u1"})
    reaction = continuity.observe(sighting, parent=SessionKey("agent:atlas:other"))
    assert (reaction.parent, reaction.lineage) == ("agent:atlas:other", "exact")


def test_a_parent_cannot_be_its_own_descendant(store: MemoryStore, continuity: Continuity) -> None:
    """Whoever says so is not believed."""
    child = SessionKey("agent:atlas:subagent:u1")
    continuity.observe(openclaw.read({"event": "session_start", "session_key": child}))
    main = openclaw.read({"event": "session_start", "session_key": "agent:atlas:main"})
    continuity.observe(main, parent=child)
    record = store.sessions.get("agent:atlas:main")
    assert record is not None
    assert record.parent_session_key is None


def test_codex_degrades_quietly(store: MemoryStore, continuity: Continuity) -> None:
    """Its sessions are kept and can be searched; nobody inherits."""
    told = {"type": "agent-turn-complete", "thread-id": "t1", "cwd": "/p", "last-assistant-message": "Done with it."}
    sighting = codex.read(told)
    assert sighting is not None
    reaction = continuity.observe(sighting)
    assert (reaction.parent, reaction.context) == (None, None)
    assert [hit.excerpt for hit in store.search("done", agent_id="default")] == ["Done with it."]
    assert codex.read({"type": "something-else"}) is None


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({}, "no 'event'"),
        ({"event": "jump", "session_key": "agent:a:main"}, "event 'jump' is not known"),
        ({"event": "message"}, "no 'session_key'"),
    ],
)
def test_a_body_that_says_nothing_is_refused_in_a_sentence(body: dict[str, Any], why: str) -> None:
    """With what is missing."""
    with pytest.raises(UnreadablePayloadError, match=why):
        openclaw.read(body)
