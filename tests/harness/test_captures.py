"""Real payloads of Claude Code: every sub-agent has the right parent in the end, and nothing passes for another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from understudy.gateway.harness import Continuity, claude_code
from understudy.persistence import MemoryStore, Store
from understudy.protocol import RuntimeConfig

if TYPE_CHECKING:
    from collections.abc import Iterator

    from understudy.gateway.harness import Reaction
    from understudy.persistence import Ledger

CAPTURES = Path(__file__).parents[1] / "data" / "claude-code"


def payloads(scenario: str) -> list[dict[str, Any]]:
    return [json.loads(file.read_text()) for file in sorted((CAPTURES / scenario).glob("*.json"))]


def main_of(scenario: str) -> str:
    return str(payloads(scenario)[0]["session_id"])


@pytest.fixture(params=["sqlite", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ledger]:
    opened: Ledger = (
        Store.open(tmp_path / "agents.db", wall_ms=lambda: 1)
        if request.param == "sqlite"
        else MemoryStore(wall_ms=lambda: 1)
    )
    yield opened
    opened.close()


def a_continuity(store: Ledger, **config: Any) -> Continuity:
    return Continuity(store, wall_ms=lambda: 1, config=RuntimeConfig(**config))


def play(continuity: Continuity, events: list[dict[str, Any]]) -> dict[str, list[Reaction]]:
    """What came of each payload, by its event."""
    reactions: dict[str, list[Reaction]] = {}
    for payload in events:
        sighting = claude_code.read(payload)
        if sighting is not None:
            reactions.setdefault(payload["hook_event_name"], []).append(continuity.observe(sighting))
    return reactions


def lineage(store: Ledger) -> dict[str, str | None]:
    """Each session's own part of its key, and its parent's."""
    found = store.sessions.find(limit=100).items
    return {
        record.session_key.split(":")[-1]: record.parent_session_key and record.parent_session_key.split(":")[-1]
        for record in found
    }


@pytest.mark.parametrize(
    ("scenario", "expected"),
    [
        ("A_main_read", {}),
        ("B_subagent", {"a836048a2cf8df631": "main"}),
        ("C_parallel", {"a75bdb9a36327e2bb": "main", "ae4e9b3be1e60fc41": "main"}),
        ("D_background", {"a47baf82dc44b656f": "main"}),
        ("E_nested", {"a816a53bd87747a75": "main", "a8bab3f46322d910e": "a816a53bd87747a75"}),
        ("G_compact_manual", {}),
    ],
)
def test_every_sub_agent_has_the_right_parent(store: Ledger, scenario: str, expected: dict[str, str]) -> None:
    """Also parallel, background and nested ones; a compaction's own agents are nobody."""
    play(a_continuity(store), payloads(scenario))
    main = main_of(scenario)
    parents = {child: main if parent == "main" else parent for child, parent in expected.items()}
    assert lineage(store) == {main: None, **parents}
    assert not any(record.parent_inferred for record in store.sessions.find(limit=100).items)


def test_a_nested_one_is_put_right_as_soon_as_its_parent_is_told(store: Ledger) -> None:
    """Without the calls before it the first guess is the main session, and says so; its parent's answer corrects it."""
    late = [payload for payload in payloads("E_nested") if payload["hook_event_name"] != "PreToolUse"]
    main, inner = main_of("E_nested"), "a8bab3f46322d910e"
    guesses = play(a_continuity(store), late)["SubagentStart"]
    assert [(str(guess.parent).split(":")[-1], guess.lineage) for guess in guesses] == [(main, "inferred")] * 2
    assert lineage(store)[inner] == "a816a53bd87747a75"
    record = store.sessions.get(f"claude-code:{main}:subagent:{inner}")
    assert record is not None
    assert (record.depth, record.parent_inferred) == (2, False)
    context = store.sessions.working_context(f"claude-code:{main}:subagent:a816a53bd87747a75")
    assert context is not None
    assert context.recent_files == ("/home/dev/project/hello.txt",)


def test_the_meta_file_names_the_parent_at_once(store: Ledger, tmp_path: Path) -> None:
    """It stands beside the sub-agent's transcript, where the harness has written it."""
    agents = tmp_path / "s1" / "subagents"
    agents.mkdir(parents=True)
    (agents / "agent-inner.meta.json").write_text(json.dumps({"parentAgentId": "outer", "spawnDepth": 2}))
    (agents / "agent-outer.meta.json").write_text(json.dumps({"spawnDepth": 1}))
    base = {"session_id": "s1", "transcript_path": str(tmp_path / "s1.jsonl"), "cwd": str(tmp_path)}
    starts = [
        {**base, "hook_event_name": "SubagentStart", "agent_id": agent, "agent_type": "Explore"}
        for agent in ("outer", "inner")
    ]
    started = play(a_continuity(store), starts)["SubagentStart"]
    assert [reaction.lineage for reaction in started] == ["exact", "exact"]
    assert lineage(store) == {"s1": None, "outer": "s1", "inner": "outer"}


def test_what_a_sub_agent_read_is_in_its_parents_view(store: Ledger) -> None:
    """Through every level, when it stops; what lies outside of the project is not."""
    events = payloads("E_nested")
    outside = json.loads(
        json.dumps(next(p for p in events if p.get("tool_name") == "Read")).replace(
            "/home/dev/project/hello.txt", "/etc/passwd"
        )
    )
    play(a_continuity(store), [*events[:8], {**outside, "hook_event_name": "PostToolUse"}, *events[8:]])
    context = store.sessions.working_context(f"claude-code:{main_of('E_nested')}")
    assert context is not None
    assert context.recent_files == ("/home/dev/project/hello.txt",)


def test_what_was_said_is_kept_from_the_payloads_where_no_transcript_can_be_read(store: Ledger) -> None:
    """Prompts and last words; not the note by which a background task wakes its parent."""
    play(a_continuity(store), payloads("D_background"))
    main = f"claude-code:{main_of('D_background')}"
    said = [(stored.turn.role, stored.turn.text) for stored in store.transcripts.turns(main)]
    assert [role for role, _ in said] == ["user", "assistant"]
    assert not any("<task-notification>" in text for _, text in said)
    child = store.transcripts.turns(f"{main}:subagent:a47baf82dc44b656f")
    assert [stored.turn.role for stored in child] == ["assistant"]


def test_a_sub_agent_inherits_and_its_parent_does_not(store: Ledger) -> None:
    """The block comes with the start of a sub-agent, and only then; switched off, not even then."""
    reactions = play(a_continuity(store), payloads("B_subagent"))
    (started,) = reactions.pop("SubagentStart")
    assert started.context is not None
    assert started.context.startswith("## Inherited from Parent Session")
    assert "│ user: MOCK:" in started.context
    assert all(reaction.context is None for event in reactions.values() for reaction in event)
    quiet = play(a_continuity(store, inherit_context=False), payloads("C_parallel"))["SubagentStart"]
    assert [reaction.context for reaction in quiet] == [None, None]


def test_sessions_end_when_they_end_and_a_second_word_changes_nothing(store: Ledger) -> None:
    """Sub-agents with their stop, the main one with its own."""
    play(a_continuity(store), payloads("B_subagent"))
    assert all(record.completed_at is not None for record in store.sessions.find(limit=10).items)
    before = store.transcripts.text(f"claude-code:{main_of('B_subagent')}")
    play(a_continuity(store), [payloads("B_subagent")[-2]])
    assert store.transcripts.text(f"claude-code:{main_of('B_subagent')}") == before


def test_a_compaction_leaves_a_checkpoint_and_no_sub_agent(store: Ledger) -> None:
    """Its own agents have no type, and were never started."""
    main = main_of("A_main_read")
    base = {"session_id": main, "cwd": "/home/dev/project"}
    prompt = {**base, "hook_event_name": "UserPromptSubmit", "prompt": "More, please"}
    compacting = {**base, "hook_event_name": "PreCompact", "trigger": "auto"}
    own = {**base, "hook_event_name": "SubagentStop", "agent_id": "a1", "agent_type": "", "last_assistant_message": "x"}
    play(a_continuity(store), [prompt, compacting, own])
    checkpoint = store.sessions.checkpoint(f"claude-code:{main}")
    assert checkpoint is not None
    assert checkpoint.trigger == "pre_compaction"
    assert "More, please" in checkpoint.digest
    assert lineage(store) == {main: None}


def test_a_transcript_file_is_read_as_it_grows_and_each_line_once(store: Ledger, tmp_path: Path) -> None:
    """Also the last line of a sub-agent that was told by its stop before it was on disk."""
    agents = tmp_path / "s1" / "subagents"
    agents.mkdir(parents=True)
    main, sub = tmp_path / "s1.jsonl", agents / "agent-a1.jsonl"
    base = {"session_id": "s1", "transcript_path": str(main), "cwd": str(tmp_path)}
    inside = {**base, "agent_id": "a1", "agent_type": "Explore"}

    def line(role: str, content: object, **more: object) -> str:
        return json.dumps({"type": role, "message": {"role": role, "content": content}, **more}) + "\n"

    main.write_text(
        line("user", "How is config loaded?")
        + line("user", "<task-notification>done</task-notification>")
        + line("user", "You are being continued", isCompactSummary=True)
        + line("assistant", [{"type": "text", "text": "I ask somebody."}, {"type": "tool_use", "id": "1"}])
    )
    continuity = a_continuity(store)
    (started,) = play(continuity, [{**inside, "hook_event_name": "SubagentStart"}])["SubagentStart"]
    assert started.context is not None
    assert started.context.endswith("│ user: How is config loaded?\n│ assistant: I ask somebody.")
    play(continuity, [{**base, "hook_event_name": "UserPromptSubmit", "prompt": "How is config loaded?"}])
    sub.write_text(line("user", "look") + line("user", [{"type": "tool_result", "content": "a = 1"}]))
    stop = {**inside, "hook_event_name": "SubagentStop", "agent_transcript_path": str(sub),
            "last_assistant_message": "It is TOML."}  # fmt: skip
    play(continuity, [stop])
    with sub.open("a") as file:
        file.write(line("assistant", "It is TOML."))
    play(continuity, [stop, {**base, "hook_event_name": "SessionEnd"}])
    assert store.transcripts.text("claude-code:s1") == "user: How is config loaded?\nassistant: I ask somebody."
    told = store.transcripts.text("claude-code:s1:subagent:a1")
    assert told == "user: look\ntool: a = 1\nassistant: It is TOML."
