"""The cast: a result as the parent's model reads it, to the letter."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
from _stage import MAIN, a_host

from understudy.protocol import EndReason, Failure, RecentFile, RunId, SessionKey, Spawn, SubAgentResult, Usage
from understudy.protocol.result import Condensation
from understudy.protocol.summary import ResultSummary, parse_summary, paths_in

if TYPE_CHECKING:
    from pathlib import Path

    from understudy.actors.runners import AsyncFunctionContext
    from understudy.actors.testing import ManualClock
    from understudy.protocol import SpawnPacket

SUMMARY = ResultSummary(
    task_complete=True,
    summary="Config is loaded lazily.",
    conclusions=("loader.py is the only reader",),
    file_paths=("/repo/loader.py",),
    actionable_items=("add a test",),
    key_data=("keys: 41",),
    confidence=0.8,
)


def a_result(**fields: Any) -> SubAgentResult:
    usual: dict[str, Any] = {
        "run_id": RunId("r-1"),
        "session_key": SessionKey("agent:atlas:subagent:r-1"),
        "parent_session_key": SessionKey("agent:atlas:main"),
        "label": "config",
        "end_reason": EndReason.COMPLETED,
        "output": "It is loaded by loader.py.",
        "usage": Usage(input_tokens=4_000, output_tokens=500, cost_usd=0.0135),
        "steps": 5,
        "runtime_ms": 12_345,
    }
    return SubAgentResult.model_validate({**usual, **fields})


def read(note: str) -> str:
    """A note without the blanks at the ends of its lines, which nobody sees."""
    return "\n".join(line.rstrip() for line in note.split("\n"))


def test_the_whole_of_it() -> None:
    """Kept, summarized by a model, with files and everything a parent may want to know."""
    files = [RecentFile(path=f"/repo/{name}.py", provenance=how) for name, how in
             (("a", "read"), ("b", "read"), ("loader", "changed"), ("c", "read"))]  # fmt: skip
    result = a_result(
        output=SUMMARY.render(), summary=SUMMARY, condensation=Condensation(2, 15_000, 4_500),
        recent_files=tuple(files), full_ref="/results/r-1.json", kept=True,
    )  # fmt: skip
    assert read(result.cast()) == """\
[Subagent Result: config]
Status: Completed
Condensation: Level 2 (model summary)

│ Config is loaded lazily.
│
│ Conclusions:
│ - loader.py is the only reader
│
│ Files:
│ - /repo/loader.py
│
│ To do:
│ - add a test
│
│ Data:
│ - keys: 41
│
│ Task complete: yes | Confidence: 0.80
---
Runtime: 12.3s | Steps: 5 | Tokens: 4500 | Cost: $0.0135 | End: completed
Condensation: Level 2 | Original: 15000 tokens | Ratio: 0.30
Files: 3 read, 1 changed | Full result: /results/r-1.json | Session: agent:atlas:subagent:r-1
Follow-up: sessions_send(session_key="agent:atlas:subagent:r-1")
The session key is for your tools alone: do not mention it to your user."""  # fmt: skip


def test_a_failure_that_was_not_kept() -> None:
    """Its reason, the files it touched all the same, and no session to follow up."""
    result = a_result(
        end_reason=EndReason.WATCHDOG_TIMEOUT, failure=Failure(kind="deadline", message="60 s\nare over"), partial=True,
        output="half of it", recent_files=(RecentFile(path="/repo/a.py"),), dropped_files=2,
        condensation=Condensation(1, 3, 3),
    )  # fmt: skip
    assert read(result.cast(tag_prefix="Report")) == """\
[Report: config]
Status: Timed out
Condensation: Level 1 (passthrough)
Reason: deadline: 60 s are over

│ half of it
│
│ Files:
│ - /repo/a.py (read)
---
Runtime: 12.3s | Steps: 5 | Tokens: 4500 | Cost: $0.0135 | End: watchdog_timeout
Condensation: Level 1 | Original: 3 tokens | Ratio: 1.00
Files: 1 read, 0 changed, 2 outside of the workspace"""  # fmt: skip


def test_the_plain_form_is_framed_the_same_way() -> None:
    """Labelled, without the figures; what a follow-up needs is still there."""
    assert read(a_result(kept=True).cast(narrative=False)) == """\
Subagent Result (config): Completed

│ It is loaded by loader.py.
Session: agent:atlas:subagent:r-1
Follow-up: sessions_send(session_key="agent:atlas:subagent:r-1")
The session key is for your tools alone: do not mention it to your user."""  # fmt: skip


@pytest.mark.parametrize(("kept", "is_follow_up", "hints"), [(False, False, 0), (True, False, 1), (True, True, 0)])
def test_the_hint_is_for_kept_ones_and_given_once(kept: bool, is_follow_up: bool, hints: int) -> None:
    """Not on the result of a follow-up, whose reader knows; the session is named wherever it is kept."""
    note = a_result(kept=kept, is_follow_up=is_follow_up).cast()
    assert note.count("Follow-up: ") == hints
    assert note.count("| Session: ") == note.count("do not mention it") == kept


def test_many_files_are_named_from_the_last() -> None:
    """Twenty at most, and the note says how many more there are."""
    files = tuple(RecentFile(path=f"/repo/{number}.py") for number in range(50))
    note = a_result(recent_files=files).cast()
    assert "│ Files (30 earlier ones are not listed):\n│ - /repo/30.py (read)\n" in note
    assert "│ - /repo/49.py (read)\n---" in note
    long = tuple(RecentFile(path=f"/repo/{'x' * 400}{number}") for number in range(20))
    assert len(a_result(recent_files=long).cast()) < 3_000


def test_a_result_stored_before_there_were_summaries_still_loads() -> None:
    """Old rows have neither field."""
    old = a_result().model_dump_json(exclude_none=True, exclude={"summary", "outside_outputs"})
    assert SubAgentResult.model_validate_json(old) == a_result()


def test_expected_outputs_are_named_and_nobody_looks_outside(manual_clock: ManualClock, tmp_path: Path) -> None:
    """What is there, what is not, and what is elsewhere: by dots, by an absolute path, or by a link."""
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (tmp_path / "secret").write_text("there")
    (workspace / "link").symlink_to(tmp_path / "secret")

    async def write(packet: SpawnPacket, context: AsyncFunctionContext) -> str:
        (workspace / "made.md").write_text("made")
        return "done"

    outside = ("../secret", str(tmp_path / "secret"), "link", "../../../etc/passwd")
    with a_host(manual_clock, write) as runtime:
        session = runtime.session(MAIN, workspace=workspace)
        result = session.spawn(Spawn(task="x", expected_outputs=("made.md", "not.md", *outside))).result(timeout=30)
    assert result.verified_outputs == ("made.md",)
    assert result.missing_outputs == ("not.md", *outside)
    assert result.outside_outputs == outside
    (line,) = [line for line in result.cast().splitlines() if line.startswith("Expected outputs: ")]
    assert line.startswith(
        "Expected outputs: verified made.md; missing not.md; not looked for, as it is outside of the"
    )
    assert all(path in line for path in outside)
    assert os.path.exists(tmp_path / "secret")  # noqa: PTH110 - and still it is not told


@pytest.mark.parametrize(
    "answer",
    [
        "", "no object", "[1, 2]", "{", "{" * 5_000, "[" * 100_000, '{"summary": "x"}', "null",
        '{"task_complete": 1, "summary": "x", "confidence": 0.5}',
        '{"task_complete": true, "summary": " ", "confidence": 0.5}',
        '{"task_complete": true, "summary": "x", "confidence": "high"}',
        '{"task_complete": true, "summary": "x", "confidence": NaN}',
        '{"task_complete": true, "summary": "x", "confidence": 0.5, "conclusions": "one"}',
        '{"task_complete": true, "summary": "x", "confidence": 0.5, "more": 1}',
    ],
)  # fmt: skip
def test_what_is_not_of_the_schema_is_refused_with_the_reason(answer: str) -> None:
    """Types are not guessed: the model is told, and asked again."""
    with pytest.raises(ValueError, match=r"\w"):
        parse_summary(answer)


def test_the_first_object_of_the_schema_counts() -> None:
    """Others before it are talk."""
    good = '{"task_complete": true, "summary": "s", "confidence": 1, "key_data": {"a": {"b": [1]}}}'
    summary = parse_summary(f'Given {{"x": 1}} and {{broken, I say: {good} or {{"task_complete": false}}')
    assert (summary.summary, summary.key_data) == ("s", ('a: {"b": [1]}',))


def test_paths_are_told_from_other_words() -> None:
    """Ways that begin somewhere, and names with an ending; not fractions, alternatives or addresses."""
    text = (
        "see /repo/src/a.py, src/b.py:12 and `./c/d`; ~/x/y, ../up/z.md. C:\\dir\\e.txt (docs/f.md)"
        " but not and/or, 1/2, 3.5/4.5, https://example.com/g/h.html, a:b or x."
    )
    assert paths_in(text) == [
        *("/repo/src/a.py", "src/b.py", "./c/d", "~/x/y", "../up/z.md", "C:\\dir\\e.txt", "docs/f.md"),
    ]
    assert len(paths_in("".join(f"/p/{n}.py " for n in range(1_000)))) == 40
