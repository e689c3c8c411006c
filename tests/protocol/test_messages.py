"""Requests, answers and results: strict, frozen, and truthful."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pykka
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

import understudy.protocol
from understudy.protocol import (
    EndReason,
    Failure,
    Rejection,
    RunId,
    SessionKey,
    Spawn,
    SpawnPacket,
    SpawnRejected,
    SubAgentResult,
    Usage,
)

FAILURE = Failure(kind="deadline", message="too late")


def result(**fields: Any) -> SubAgentResult:
    known: dict[str, Any] = {
        "run_id": RunId("r-1"),
        "session_key": SessionKey("agent:a:sub"),
        "parent_session_key": SessionKey("agent:a:main"),
        "label": "reader",
        "end_reason": EndReason.COMPLETED,
        "output": "done",
    }
    return SubAgentResult(**{**known, **fields})


def test_edge_messages_are_frozen() -> None:
    """Nobody changes a message after it was said."""
    models = [value for value in vars(understudy.protocol).values() if isinstance(value, type)]
    edges = [model for model in models if issubclass(model, BaseModel)]
    assert len(edges) > 10
    assert all(model.model_config.get("frozen") and model.model_config.get("extra") == "forbid" for model in edges)


def test_both_spellings_are_understood() -> None:
    """The documents' camelCase and ours."""
    camel = Spawn.model_validate(
        {"task": "x", "artifactRefs": ["a"], "includeParentHistory": "summary", "agent": "claude"}
    )
    assert camel == Spawn(task="x", artifact_refs=("a",), include_parent_history="summary", runner="claude")


@pytest.mark.parametrize("label", ["", " ", "a\nb", "a\u2028b", "a\x1b[31m", "x" * 5000])
def test_a_label_is_one_printable_line(label: str) -> None:
    """It is printed inside the result's tag: a line break there could forge one."""
    with pytest.raises(ValidationError):
        Spawn(task="x", label=label)


@pytest.mark.parametrize("env", [{"A=B": "c"}, {"": "x"}, {"1A": "x"}, {"A\n": "x"}])
def test_environment_names_are_names(env: dict[str, str]) -> None:
    """Nothing that a shell or a process table would read otherwise."""
    with pytest.raises(ValidationError):
        Spawn(task="x", env=env)


def test_a_spawn_says_nothing_of_its_environment() -> None:
    """Values there are often secrets."""
    assert "hunter2" not in repr(Spawn(task="x", env={"TOKEN": "hunter2"}))


def test_reply_to_takes_an_actor_and_is_never_serialised() -> None:
    """It lives only as long as its host."""

    class Host(pykka.ThreadingActor):
        pass

    ref = Host.start()
    try:
        spawn = Spawn(task="x", reply_to=ref)
        assert "reply_to" not in spawn.model_dump()
        assert spawn.digest() == Spawn(task="x").digest()
    finally:
        ref.stop()
    with pytest.raises(ValidationError):
        Spawn.model_validate({"task": "x", "reply_to": "not an actor"})


def test_the_digest_tells_requests_apart_and_ignores_the_key() -> None:
    """Same key and same digest is the same request; everything asked for counts."""
    assert Spawn(task="x", idempotency_key="k").digest() == Spawn(task="x", idempotency_key="other").digest()
    assert Spawn(task="x").digest() != Spawn(task="y").digest()
    assert Spawn(task="x").digest() != Spawn(task="x", env={"A": "b"}).digest()


@given(
    st.text(st.characters(exclude_categories=["Cs"])),
    st.dictionaries(st.from_regex(r"[A-Z]{1,4}", fullmatch=True), st.text(st.characters(exclude_categories=["Cs"]))),
)
def test_a_spawn_survives_json_pickle_and_copy(task: str, env: dict[str, str]) -> None:
    """It crosses processes and restarts as what it was."""
    spawn = Spawn(task=f"x{task}", env=env)
    assert Spawn.model_validate_json(spawn.model_dump_json()) == spawn
    assert copy.deepcopy(spawn) == spawn
    assert pickle.loads(pickle.dumps(spawn)) == spawn  # noqa: S301 - our own


def test_a_rejection_is_raised_with_its_structure() -> None:
    """And crosses processes with it."""
    rejection = Rejection(reason="depth_exceeded", message="depth 2 is the deepest", current=2, limit=3)
    error = pickle.loads(pickle.dumps(SpawnRejected(rejection)))  # noqa: S301 - our own
    assert (str(error), error.rejection) == ("depth 2 is the deepest", rejection)


@pytest.mark.parametrize(("depth", "leaf"), [(1, False), (2, True)])
def test_a_child_at_the_deepest_level_is_a_leaf(depth: int, leaf: bool) -> None:
    """With 3 levels: parent, child, grandchild."""
    packet = SpawnPacket(
        run_id=RunId("r"), session_key=SessionKey("c"), parent_session_key=SessionKey("p"),
        root_session_key=SessionKey("p"), depth=depth, max_depth=3, task="x", label="x", runner="default",
        workspace_dir="/w", cwd="/w", max_steps=5, timeout_ms=1000,
    )  # fmt: skip
    assert packet.is_leaf is leaf


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"partial": True}, "neither partial nor a failure"),
        ({"failure": FAILURE}, "neither partial nor a failure"),
        ({"output": " \n"}, "an empty one is a failure"),
        ({"end_reason": EndReason.FAILED}, "says why in 'failure'"),
        ({"end_reason": EndReason.SWEPT, "failure": FAILURE}, "a run cannot end by it"),
    ],
)
def test_a_result_that_is_not_truthful_cannot_be_built(fields: dict[str, Any], words: str) -> None:
    """Partial is not completed, empty is not completed, and a failure says why."""
    with pytest.raises(ValidationError, match=words):
        result(**fields)


@pytest.mark.parametrize(
    ("end", "partial", "status"),
    [
        (EndReason.FAILED, True, "partial"),
        (EndReason.FAILED, False, "failed"),
        (EndReason.KILLED, True, "killed"),
        (EndReason.WATCHDOG_TIMEOUT, False, "timed_out"),
        (EndReason.GHOST_SWEEP, False, "ghost"),
    ],
)
def test_the_status_of_a_result_follows_its_end(end: EndReason, partial: bool, status: str) -> None:
    """In one word; completed only for a completed run."""
    assert result(end_reason=end, partial=partial, failure=FAILURE).status == status
    assert result().status == "completed"


def test_usage_adds_up() -> None:
    """Along the tree, tokens and money."""
    one, two = Usage(input_tokens=1, output_tokens=2, cost_usd=0.5), Usage(input_tokens=10, cost_usd=0.25)
    assert one + two == Usage(input_tokens=11, output_tokens=2, cost_usd=0.75)
    assert (one + two).total_tokens == 13


def test_there_are_six_end_reasons() -> None:
    """Closed."""
    assert [str(reason) for reason in EndReason] == [
        "completed", "failed", "killed", "watchdog_timeout", "ghost_sweep", "swept",
    ]  # fmt: skip
