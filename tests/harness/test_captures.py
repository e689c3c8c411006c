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
    assert [role for role, _ in said] == ["user", "user", "assistant"]
    assert said[1][1].startswith("[Subagent Result: general-purpose]")  # the note on what the background task said
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
    assert store.transcripts.text("claude-code:s1") == (
        "user: How is config loaded?\nassistant: I ask somebody.\n"
        "user: [Subagent Result: Explore]\n\n│ It is TOML.\n---\nSession: claude-code:s1:subagent:a1"
    )
    told = store.transcripts.text("claude-code:s1:subagent:a1")
    assert told == "user: look\ntool: a = 1\nassistant: It is TOML."


def a_line(role: str, content: object, **more: object) -> str:
    return json.dumps({"type": role, "message": {"role": role, "content": content}, **more}) + "\n"


def said_in(store: Ledger, session: str = "claude-code:s1") -> list[str]:
    return [f"{stored.turn.role}: {stored.turn.text}" for stored in store.transcripts.turns(session)]


def test_what_is_told_before_it_is_on_disk_is_there_at_once_and_once(store: Ledger, tmp_path: Path) -> None:
    """The file does not even exist when a session's first prompt is told; an answer is told before it is written."""
    main = tmp_path / "s1.jsonl"
    base = {"session_id": "s1", "transcript_path": str(main), "cwd": str(tmp_path)}
    continuity = a_continuity(store)
    prompt = {**base, "hook_event_name": "UserPromptSubmit", "prompt": "yes"}
    stop = {**base, "hook_event_name": "Stop", "last_assistant_message": "It is so."}
    written = ""
    for round_ in (1, 2):  # the same words again are said again
        play(continuity, [prompt])
        assert said_in(store) == ["user: yes", "assistant: It is so."] * (round_ - 1) + ["user: yes"]
        written += a_line("user", "yes")
        main.write_text(written)
        play(continuity, [stop])
        assert said_in(store) == ["user: yes", "assistant: It is so."] * round_
        written += a_line("assistant", "It is so.")
        main.write_text(written)
    play(continuity, [{**base, "hook_event_name": "SessionEnd"}])
    assert said_in(store) == ["user: yes", "assistant: It is so."] * 2


def test_a_later_host_knows_what_an_earlier_one_was_told_ahead(store: Ledger, tmp_path: Path) -> None:
    """It is what was stored last, and comes next in the file."""
    main = tmp_path / "s1.jsonl"
    base = {"session_id": "s1", "transcript_path": str(main), "cwd": str(tmp_path)}
    play(a_continuity(store), [{**base, "hook_event_name": "UserPromptSubmit", "prompt": "Look"}])
    main.write_text(a_line("user", "Look") + a_line("assistant", "I look.") + a_line("user", "Look"))
    play(a_continuity(store), [{**base, "hook_event_name": "PreToolUse", "tool_name": "Bash"}])
    assert said_in(store) == ["user: Look", "assistant: I look.", "user: Look"]


def test_a_host_that_comes_late_catches_up_from_the_transcript(store: Ledger, tmp_path: Path) -> None:
    """Everything that was said while nobody listened, in order, by the first payload that arrives."""
    main = tmp_path / "s1.jsonl"
    main.write_text("".join(a_line("user", f"prompt {n}") + a_line("assistant", f"answer {n}") for n in range(50)))
    base = {"session_id": "s1", "transcript_path": str(main), "cwd": str(tmp_path)}
    play(a_continuity(store), [{**base, "hook_event_name": "PostToolUse", "tool_name": "Bash"}])
    assert said_in(store) == [line for n in range(50) for line in (f"user: prompt {n}", f"assistant: answer {n}")]


@pytest.mark.parametrize("scenario", ["B_subagent", "C_parallel", "D_background", "E_nested"])
def test_a_parent_is_told_once_what_each_of_its_sub_agents_said(store: Ledger, scenario: str) -> None:
    """However often their end is told; one whose parent is put right afterwards is told to that one too."""
    play(a_continuity(store), payloads(scenario))
    for record in store.sessions.find(limit=9).items:
        notes = [text for text in said_in(store, record.session_key) if text.startswith("user: [Subagent Result: ")]
        below = {child.session_key for child in store.sessions.children(record.session_key)}
        assert sorted(note.rpartition("Session: ")[2] for note in notes) == sorted(below)


def test_the_same_words_of_two_tools_are_both_kept(store: Ledger, tmp_path: Path) -> None:
    """Also where the file was read between them: only what a payload told ahead is passed over."""
    main = tmp_path / "s1.jsonl"
    base = {"session_id": "s1", "transcript_path": str(main), "cwd": str(tmp_path)}
    used = [{**base, "hook_event_name": "PostToolUse", "tool_name": "Bash"}]
    result = a_line("user", [{"type": "tool_result", "content": "ok"}])
    continuity = a_continuity(store)
    for count in (1, 2, 3):
        main.write_text(result * count)
        play(continuity if count < 3 else a_continuity(store), used)
        assert said_in(store) == ["tool: ok"] * count


def test_sub_agents_that_nobody_heard_of_are_found_beside_the_transcript(store: Ledger, tmp_path: Path) -> None:
    """With their parents and what was said; not a compaction's own, and nothing that a link leads to."""
    agents = tmp_path / "s1" / "subagents"
    agents.mkdir(parents=True)
    main = tmp_path / "s1.jsonl"
    main.write_text(a_line("user", "Go"))
    for agent, meta in (("outer", {}), ("inner", {"parentAgentId": "outer"}), ("linked", {})):
        (agents / f"agent-{agent}.meta.json").write_text(json.dumps({"spawnDepth": 1 + len(meta), **meta}))
    for agent in ("outer", "inner", "compaction"):
        (agents / f"agent-{agent}.jsonl").write_text(a_line("user", f"task of {agent}"))
    (agents / "agent-linked.jsonl").symlink_to(main)
    base = {"session_id": "s1", "transcript_path": str(main), "cwd": str(tmp_path)}
    continuity = a_continuity(store)
    for _ in range(2):
        play(continuity, [{**base, "hook_event_name": "PostToolUse", "tool_name": "Bash"}])
    assert lineage(store) == {"s1": None, "outer": "s1", "inner": "outer"}
    assert said_in(store, "claude-code:s1:subagent:inner") == ["user: task of inner"]
    depths = {record.session_key.split(":")[-1]: record.depth for record in store.sessions.find(limit=9).items}
    assert depths == {"s1": 0, "outer": 1, "inner": 2}


def test_a_sub_agents_last_words_stand_once_in_its_parents_session(store: Ledger, tmp_path: Path) -> None:
    """As the note from its stop, not again as the tool result; one whose stop was missed keeps the result."""
    main = tmp_path / "s1.jsonl"
    base = {"session_id": "s1", "transcript_path": str(main), "cwd": str(tmp_path)}
    results = [{"type": "tool_result", "content": "hand-back of %s"}]
    main.write_text(
        "".join(
            a_line("user", json.loads(json.dumps(results) % agent), toolUseResult={"agentId": agent})
            for agent in ("heard", "missed")
        )
    )
    inside = {**base, "agent_id": "heard", "agent_type": "Explore"}
    stop = {**inside, "hook_event_name": "SubagentStop", "last_assistant_message": "It is TOML."}
    resumed = {**stop, "last_assistant_message": "It is YAML after all."}
    play(a_continuity(store), [{**inside, "hook_event_name": "SubagentStart"}])
    assert len(said_in(store)) == 2  # nothing had been told of either when the file was read
    fresh = MemoryStore(wall_ms=lambda: 1)
    continuity = a_continuity(fresh)
    play(continuity, [{**inside, "transcript_path": str(tmp_path / "none"), "hook_event_name": "SubagentStart"}])
    play(continuity, [{**stop, "transcript_path": str(tmp_path / "none")}, {**base, "hook_event_name": "SessionEnd"}])
    assert ["hand-back of heard" in text for text in said_in(fresh)] == [False, False]
    assert ["│ It is TOML." in text for text in said_in(fresh)] == [True, False]
    assert said_in(fresh)[1] == "tool: hand-back of missed"
    play(continuity, [stop, resumed, resumed])
    assert sum("It is YAML after all." in text for text in said_in(fresh)) == 1


def test_files_in_view_outlive_a_compaction_and_nothing_else_is_put_before_a_main_session(store: Ledger) -> None:
    """Only what begins after a compaction is reminded: each resume would put another copy there."""
    continuity = a_continuity(store)
    play(continuity, payloads("B_subagent")[:-1])
    start = payloads("B_subagent")[0]
    for source in ("startup", "resume", "clear"):
        (reaction,) = play(continuity, [{**start, "source": source}])["SessionStart"]
        assert reaction.context is None
    (reaction,) = play(continuity, [{**start, "source": "compact"}])["SessionStart"]
    assert reaction.context == (
        "[working-context]\nproject_dir: /home/dev/project\nrecent_files:\n  - /home/dev/project/hello.txt"
    )
