"""What five real CLIs printed, as they printed it, becomes the events of a run; what nobody understands, nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from _extent import so_far
from hypothesis import given, settings
from hypothesis import strategies as st

from understudy.actors.runners.cli import PROFILES, FieldPaths, PlainText
from understudy.protocol import Usage
from understudy.protocol.model import TextDelta, UsageReport
from understudy.protocol.runner import Keepalive, Said, SessionIdentified, ToolEnded, ToolStarted, Touched

if TYPE_CHECKING:
    from understudy.actors.runners.cli.stream import Stream
    from understudy.protocol.runner import RunnerEvent

CAPTURES = Path(__file__).parents[1] / "data" / "cli-streams"
HELLO = "/home/dev/project/hello.txt"


def capture(cli: str, what: str) -> list[bytes]:
    """The lines of a recorded stream."""
    (file,) = CAPTURES.glob(f"{cli}-*_{what}.jsonl")
    return file.read_bytes().splitlines()


def played(cli: str, what: str, spent: Usage | None = None) -> tuple[Stream, list[RunnerEvent]]:
    """A recorded stream, read to its end."""
    stream = PROFILES[cli].stream() if spent is None else PROFILES[cli].stream(spent=spent)
    return stream, read(stream, capture(cli, what))


def read(stream: Stream, lines: list[bytes]) -> list[RunnerEvent]:
    """Everything those lines tell."""
    return [*(event for line in lines for event in stream.read(line)), *stream.close()]


def used(events: list[RunnerEvent]) -> Usage:
    """What was consumed, summed up as a run does it."""
    return sum((event.usage for event in events if isinstance(event, UsageReport)), Usage())


def turns(events: list[RunnerEvent]) -> list[tuple[str, str, int]]:
    """The history: role, text and number of tool calls of each turn."""
    told = [event.turn for event in events if isinstance(event, Said)]
    return [(turn.role, turn.text, len(turn.tool_calls)) for turn in told]


@pytest.mark.parametrize(
    ("cli", "session", "usage"),
    [
        (
            "claude",
            "e9bf568a-a30c-4f81-9446-2be5e69deb52",
            Usage(input_tokens=42666, output_tokens=40, cost_usd=0.128598),
        ),
        ("codex", "01a1ed7c-c4cf-7933-97c1-38fe5a9285ea", Usage(input_tokens=19879, output_tokens=40)),
        ("gemini", "f5f96d41-22d3-42e0-a6c4-756b38a96eee", Usage(input_tokens=15711, output_tokens=40)),
        ("opencode", "ses_e1283341cffeIOl4bb7LbN7m6f", Usage(input_tokens=15491, output_tokens=40)),
        ("copilot", "ae95c5cc-67fa-4e77-b3af-e90e100f08a3", Usage()),
    ],
)
def test_a_tool_round_trip_is_told_whole(cli: str, session: str, usage: Usage) -> None:
    """Session, tool call and result as turns, usage to the token, the answer held back for the run's end."""
    stream, events = played(cli, "1_tool")
    assert [event.id for event in events if isinstance(event, SessionIdentified)] == [session]
    assert [(role, calls) for role, _, calls in turns(events)] == [("assistant", 1), ("tool", 0)]
    assert stream.answer.startswith("MOCK-OK rounds=1 users=1")
    assert "SECRET-FILE-CONTENT-42" in stream.answer
    assert stream.answer == "".join(event.text for event in events if isinstance(event, TextDelta))
    assert used(events) == usage
    assert stream.complete
    assert stream.error is None
    started = [event.call_id for event in events if isinstance(event, ToolStarted)]
    assert started == [event.call_id for event in events if isinstance(event, ToolEnded)]


@pytest.mark.parametrize("cli", ["claude", "gemini", "opencode", "copilot"])
def test_a_file_that_was_read_is_touched_once(cli: str) -> None:
    """By the CLI's own name for its reading tool; codex reads with its shell, and tells no file."""
    _, events = played(cli, "1_tool")
    assert [event for event in events if isinstance(event, Touched)] == [Touched(HELLO, "read")]


@pytest.mark.parametrize("cli", ["claude", "gemini", "opencode", "copilot"])
def test_a_file_that_could_not_be_read_is_not_touched(cli: str) -> None:
    """The tool failed, and the run went on."""
    stream, events = played(cli, "7_tool_error")
    assert [event for event in events if isinstance(event, Touched)] == []
    assert [role for role, _, _ in turns(events)] == ["assistant", "tool"]
    assert stream.complete
    assert stream.error is None


def test_a_patch_of_codex_touches_every_file_it_names_once_it_is_applied() -> None:
    """What it added was written, the rest edited; a patch that failed touched nothing."""
    changes = [{"path": "/p/new.py", "kind": "add"}, {"path": "/p/old.py", "kind": "update"}]
    begun = {"id": "item_1", "type": "file_change", "changes": changes, "status": "in_progress"}
    done = begun | {"status": "completed"}
    failed = begun | {"id": "item_2", "status": "failed"}
    lines = [
        json.dumps({"type": f"item.{when}", "item": item}).encode()
        for when, item in (("started", begun), ("completed", done), ("completed", failed))
    ]
    touched = [event for event in read(PROFILES["codex"].stream(), lines) if isinstance(event, Touched)]
    assert touched == [Touched("/p/new.py", "write"), Touched("/p/old.py", "edit")]


@pytest.mark.parametrize("cli", PROFILES)
def test_a_resumed_conversation_keeps_its_name_and_answers(cli: str) -> None:
    """The second process says the same id as the first."""
    _, first = played(cli, "1_tool")
    stream, second = played(cli, "2_resume")
    named = [[event for event in events if isinstance(event, SessionIdentified)] for events in (first, second)]
    assert named[0] == named[1]
    assert stream.answer == "MOCK-OK rounds=0 users=2 results=[]"


@pytest.mark.parametrize("cli", ["claude", "codex"])
def test_a_resumed_run_pays_for_itself_alone(cli: str) -> None:
    """Both tell what the whole conversation has used; what earlier runs have paid is not paid again."""
    spent = used(played(cli, "1_tool")[1])
    usage = used(played(cli, "2_resume", spent)[1])
    own = {"claude": (21484, 20, 0.064752), "codex": (29990 - 19879, 60 - 40, 0.0)}[cli]
    assert (usage.input_tokens, usage.output_tokens) == own[:2]
    assert usage.cost_usd == pytest.approx(own[2])


@pytest.mark.parametrize("cli", PROFILES)
def test_an_api_error_is_an_error_in_the_apis_words(cli: str) -> None:
    """Also of claude, which calls it a success; and it is no turn of the child's history."""
    stream, events = played(cli, "4_api_error")
    assert "mock scripted failure" in str(stream.error)
    assert stream.answer == ""
    assert turns(events) == []
    assert used(events) == Usage()


def test_codex_warnings_are_no_errors() -> None:
    """An item of type `error` comes with runs that succeed."""
    stream, _ = played("codex", "1_tool")
    assert stream.error is None
    assert stream.ignored == 1


def test_a_background_sub_agent_makes_two_rounds_and_the_last_result_counts() -> None:
    """Two inits and two results in one process; its sub-agent's words are not the child's, its files and usage are."""
    stream, events = played("claude", "3_background")
    assert stream.complete
    assert stream.answer == "main done"
    assert [text for role, text, _ in turns(events) if role == "assistant"] == ["", "main done"]
    assert [event for event in events if isinstance(event, Touched)] == [Touched(HELLO, "read")]
    assert used(events).model_dump() == pytest.approx(
        {"input_tokens": 66370 + 22392, "output_tokens": 80 + 20, "cost_usd": 0.267786}
    )


def test_between_two_rounds_claude_is_not_done() -> None:
    """A process that dies after the second init has given no answer to it."""
    lines = capture("claude", "3_background")
    inits = [number for number, line in enumerate(lines) if json.loads(line).get("subtype") == "init"]
    stream = PROFILES["claude"].stream()
    read(stream, lines[: inits[1] + 1])
    assert not stream.complete


def test_a_retry_of_the_api_is_a_keepalive() -> None:
    """It shows that the process lives, not that it gets anywhere."""
    _, events = played("claude", "6_retry")
    assert [type(event) for event in events] == [SessionIdentified, Keepalive]


def test_the_type_need_not_come_first() -> None:
    """Claude's result has it last but a few."""
    (line,) = [line for line in capture("claude", "1_tool") if json.loads(line)["type"] == "result"]
    assert not line.startswith(b'{"type"')
    stream = PROFILES["claude"].stream()
    stream.read(line)
    assert stream.complete


def test_an_older_claude_counts_its_cost_on_and_that_is_taken_off() -> None:
    """Without usage by model it tells the whole conversation's cost, and this turn's tokens."""
    line = json.loads(capture("claude", "2_resume")[-1])
    del line["model_usage_since_last_result"]
    stream = PROFILES["claude"].stream(spent=Usage(input_tokens=42666, output_tokens=40, cost_usd=0.128598))
    usage = used(list(stream.read(json.dumps(line).encode())))
    assert (usage.input_tokens, usage.output_tokens) == (21484, 20)
    assert usage.cost_usd == pytest.approx(0.064752)


@pytest.mark.parametrize("cli", PROFILES)
def test_what_is_no_event_is_counted_and_left_out(cli: str) -> None:
    """Noise between the lines of a stream changes nothing of what it tells."""
    noise = [
        b"",
        b"Loading\xff\xfe...",
        b"[1, 2",
        b"null",
        b"17",
        b'"text"',
        b"[]",
        b'{"type": "news"}',
        b"{}",
        b"[" * 90_000,
    ]
    lines = capture(cli, "1_tool")
    plain, events = played(cli, "1_tool")
    noisy = PROFILES[cli].stream()
    assert read(noisy, [between for line in lines for between in (*noise, line)]) == events
    assert noisy.answer == plain.answer
    assert noisy.ignored == plain.ignored + len(lines) * len(noise)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.parametrize("cli", PROFILES)
@settings(max_examples=so_far(40, 1_000))
@given(data=st.data())
def test_events_of_any_other_shape_never_raise(cli: str, data: st.DataObject) -> None:
    """Any value of a real event may be replaced by anything: versions to come are read as far as they can be."""
    events = [json.loads(line) for line in capture(cli, "1_tool")]
    event = data.draw(st.sampled_from(events))
    place: Any = event
    while True:
        key = data.draw(
            st.sampled_from(sorted(place)) if isinstance(place, dict) else st.sampled_from(range(len(place)))
        )
        if not isinstance(place[key], dict | list) or not place[key] or data.draw(st.booleans()):
            break
        place = place[key]
    place[key] = data.draw(_JSON)
    stream = PROFILES[cli].stream()
    for told in read(stream, [json.dumps(line).encode() for line in events]):
        said = told.turn if isinstance(told, Said) else told
        texts = (getattr(said, name, "") for name in ("text", "path", "id", "call_id", "name", "role"))
        assert all(isinstance(text, str) for text in texts), told
    assert isinstance(stream.answer, str)
    assert isinstance(stream.error, str | None)


def test_a_long_tool_result_is_stored_by_its_ends() -> None:
    """The CLI has the whole; the transcript need not hold a megabyte of it."""
    lines = [json.loads(line) for line in capture("claude", "1_tool")]
    lines[2]["message"]["content"][0]["content"] = "a" * 1_000_000 + "the end"
    events = read(PROFILES["claude"].stream(), [json.dumps(line).encode() for line in lines])
    ((_, text, _),) = [turn for turn in turns(events) if turn[0] == "tool"]
    assert len(text) <= 20_000
    assert text.endswith("the end")
    assert "characters omitted" in text


def test_parallel_calls_of_one_message_are_one_turn() -> None:
    """Claude tells each block of a message as an event of its own."""
    call = {"type": "tool_use", "name": "Read", "input": {"file_path": "/p/a"}}
    message = {"id": "msg_1", "usage": {"input_tokens": 7, "output_tokens": 1}}
    lines = [
        {"type": "assistant", "message": message | {"content": [{"type": "text", "text": "Let me look."}]}},
        *({"type": "assistant", "message": message | {"content": [call | {"id": name}]}} for name in "ab"),
        *(
            {"type": "user", "message": {"content": [{"type": "tool_result", "tool_use_id": name, "content": name}]}}
            for name in "ba"
        ),
    ]
    events = read(PROFILES["claude"].stream(), [json.dumps(line).encode() for line in lines])
    assert turns(events) == [("assistant", "Let me look.", 2), ("tool", "b", 0), ("tool", "a", 0)]
    assert used(events) == Usage(input_tokens=7, output_tokens=1)


def test_a_stream_of_anybodys_is_read_by_field_paths() -> None:
    """Text, session, files, usage, errors and the end, each from where the profile says that it stands."""
    paths = FieldPaths(
        session="meta.id", text="msg.text", changed="wrote", read="opened", done="finished",
        error="problem", input_tokens="use.in", output_tokens="use.out", cost_usd="use.usd",
    )  # fmt: skip
    stream = paths.stream()()
    events = read(
        stream,
        [
            b'{"meta": {"id": "abc"}}',
            b'{"msg": {"text": "looking"}, "opened": "a.txt"}',
            b'{"unrelated": 1}',
            b'{"wrote": "b.txt", "use": {"in": 3, "out": 4, "usd": 0.5}}',
            b'{"msg": {"text": "done it"}, "finished": true}',
        ],
    )
    assert SessionIdentified("abc") in events
    assert [event for event in events if isinstance(event, Touched)] == [
        Touched("a.txt", "read"),
        Touched("b.txt", "edit"),
    ]
    assert turns(events) == [("assistant", "looking", 0)]
    assert used(events) == Usage(input_tokens=3, output_tokens=4, cost_usd=0.5)
    assert (stream.answer, stream.complete, stream.error, stream.ignored) == ("done it", True, None, 1)
    read(stream, [b'{"problem": "no credit"}'])
    assert stream.error == "no credit"


def test_pieces_make_a_message_and_an_answer_apart_wins() -> None:
    """Deltas are put together; where the CLI names its answer, that is the answer."""
    stream = FieldPaths(delta="d", answer="result").stream()()
    read(stream, [b'{"d": "thinking "}', b'{"d": "aloud"}'])
    assert stream.answer == "thinking aloud"
    read(stream, [b'{"result": "42"}'])
    assert stream.answer == "42"
    assert not stream.tells_end


def test_plain_text_is_the_answer_line_by_line() -> None:
    """Whatever it prints, empty lines included."""
    stream = PlainText()
    read(stream, [b"first", b"", b"second \xff"])
    assert stream.answer.split() == ["first", "second", "\ufffd"]
