"""Messages as they are stored: without secrets, found by looking at little."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy.persistence import MemoryStore, Redactor, Store
from understudy.persistence import operations as op
from understudy.persistence.redaction import _HINTS, _suspect
from understudy.protocol import EndReason, Failure, RecentFile, RunId, SessionKey, SpawnPacket, SubAgentResult

VALUE = "Correct-Horse"
PARENT, CHILD, RUN = SessionKey("agent:atlas:main"), SessionKey("agent:atlas:child"), RunId("run-1")

pieces = st.sampled_from([*_HINTS, VALUE, VALUE.lower(), "K", "_", "-", "plain", "\n", '"', "ü", " = hunter22", ": "])
texts = st.lists(pieces, min_size=1, max_size=6).map("".join).filter(str.strip)
lines = texts.filter(lambda text: "\n" not in text)


def packet(**more: object) -> SpawnPacket:
    """A spawn with little in it."""
    return SpawnPacket.model_validate(
        {
            "run_id": RUN, "session_key": CHILD, "parent_session_key": PARENT, "root_session_key": PARENT,
            "depth": 1, "max_depth": 3, "task": "do it", "label": "l", "runner": "default",
            "workspace_dir": "/w", "cwd": "/w", "max_steps": 3, "timeout_ms": 10, **more,
        }
    )  # fmt: skip


@given(texts)
def test_the_quick_look_sees_whatever_any_hint_would(text: str) -> None:
    """Looking for what hints have in common is a shortcut, and never another answer."""
    lowered = text.lower()
    assert _suspect(lowered) == any(hint in lowered for hint in _HINTS)


@given(texts, lines, lines)
def test_a_document_loses_what_its_texts_would_lose(task: str, label: str, path: str) -> None:
    """Whatever field a secret stands in, and nothing else changes."""
    redactor = Redactor([VALUE])
    given_packet = packet(task=task, label=label, artifact_refs=(path,), graph={"graph_id": label, "node_id": "n"})
    document, clean = redactor.document(given_packet)
    stored = SpawnPacket.model_validate_json(document)
    said = (stored.task, stored.label, stored.artifact_refs, stored.graph and stored.graph.graph_id)
    assert said == (redactor.text(task), redactor.text(label), (redactor.text(path),), redactor.text(label))
    assert not clean or stored == given_packet

    end = SubAgentResult(
        run_id=RUN, session_key=CHILD, parent_session_key=PARENT, label="l", end_reason=EndReason.FAILED, output=task,
        failure=Failure(kind="killed", message=label), recent_files=(RecentFile(path=path),),
    )  # fmt: skip
    told = SubAgentResult.model_validate_json(redactor.document(end)[0])
    assert (told.output, told.failure and told.failure.message) == (redactor.text(task), redactor.text(label))
    assert told.recent_files[0].path == redactor.text(path)


@pytest.mark.parametrize("name", ["STRIPE_KEY", "MY_AUTH", "GITHUB_TOKEN"])
def test_a_variable_is_redacted_by_its_name(name: str) -> None:
    """However ordinary its value looks."""
    document, clean = Redactor().document(packet(env={name: "abcd", "HOME": "/h"}))
    assert json.loads(document)["env"] == {name: "[redacted]", "HOME": "/h"}
    assert not clean


@pytest.mark.parametrize("kind", ["memory", "database"])
def test_an_output_is_whole_whatever_it_holds(kind: str) -> None:
    """A NUL is replaced, and does not end what is read."""
    store = (
        MemoryStore(wall_ms=lambda: 0) if kind == "memory" else Store.open(":memory:", wall_ms=lambda: 0, inline=True)
    )
    end = SubAgentResult(
        run_id=RUN, session_key=CHILD, parent_session_key=PARENT, label="l", end_reason=EndReason.COMPLETED,
        output="be\0fore and after",
    )  # fmt: skip
    with store:
        store.transaction(op.AcceptRun(packet(), 5, "h", started=True), op.FinishRun(end, 6)).result()
        assert store.runs.full_output(RUN) == "be\ufffdfore and after"
        result = store.runs.result(RUN)
        assert result is not None
        assert result.output == "be\ufffdfore and after"


@pytest.mark.parametrize("kind", ["memory", "database"])
def test_a_spawn_that_starts_at_once_is_one_operation(kind: str) -> None:
    """Accepted and started in one is what accepted, then started, would be; it cannot start again."""
    store = (
        MemoryStore(wall_ms=lambda: 0) if kind == "memory" else Store.open(":memory:", wall_ms=lambda: 0, inline=True)
    )
    with store:
        given_packet = packet(deadline_at=99)
        answers = store.transaction(
            op.OpenSession(CHILD, 5),
            op.AcceptRun(given_packet, 5, "h", started=True),
            op.StartRun(RUN, 6, "other"),
        ).result()
        run = store.runs.get(RUN)
        assert answers == (None, None, False)
        assert run is not None
        assert (run.facts.status, run.facts.started_at, run.facts.deadline_at, run.host) == ("running", 5, 99, "h")
