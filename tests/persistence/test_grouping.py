"""Grouping cannot be told from committing one by one: the same answers, the same rows."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest
from _extent import so_far
from hypothesis import example, given, settings
from hypothesis import strategies as st

from understudy.persistence import Store
from understudy.persistence.operations import (
    AcceptRun,
    AppendTurns,
    ClaimSession,
    CompleteSession,
    CondenseResult,
    DeadLetter,
    DeleteRun,
    DeliveryFailed,
    FinishRun,
    HostHeartbeat,
    HostStarted,
    HostStopped,
    MarkSwept,
    MergeResult,
    OpenSession,
    Operation,
    Progress,
    ReleaseSession,
    ReplayDeadLetter,
    RequestCancel,
    RestartRun,
    SaveCheckpoint,
    SaveContext,
    StartRun,
)
from understudy.protocol import (
    EndReason,
    Failure,
    RunId,
    SessionKey,
    SpawnPacket,
    SubAgentResult,
    Usage,
    WorkingContext,
)
from understudy.protocol.model import Turn

if TYPE_CHECKING:
    from collections.abc import Sequence

Transactions: TypeAlias = "Sequence[Sequence[Operation]]"

PARENT = SessionKey("agent:atlas:main")
TABLES = (
    *("hosts", "sessions", "runs", "turns", "checkpoints", "working_contexts", "results", "late_endings"),
    *("outbox", "dead_letters", "compactions"),
)


def packet(run_id: RunId) -> SpawnPacket:
    return SpawnPacket(
        run_id=run_id, session_key=SessionKey(f"agent:atlas:subagent:{run_id}"), parent_session_key=PARENT,
        root_session_key=PARENT, depth=1, max_depth=3, task="t", label="l", runner="default", workspace_dir="/w",
        cwd="/w", max_steps=5, timeout_ms=1000,
    )  # fmt: skip


def result(run_id: RunId, reason: EndReason, generation: int) -> SubAgentResult:
    failure = None if reason is EndReason.COMPLETED else Failure(kind="killed", message="m")
    return SubAgentResult(
        run_id=run_id, generation=generation, session_key=packet(run_id).session_key, parent_session_key=PARENT,
        label="l", end_reason=reason, failure=failure, output="o",
    )  # fmt: skip


def condensed(full: SubAgentResult, tokens: int) -> SubAgentResult:
    return full.model_copy(update={"output": "s", "usage": Usage(input_tokens=tokens)})


# Few names, so that operations meet; and few that are refused, as a refusal breaks the group up.
runs = st.sampled_from([RunId("a"), RunId("b")])
hosts = st.sampled_from(["h1", "h2"])
sessions = st.sampled_from([PARENT, *(packet(RunId(name)).session_key for name in "ab")])
times = st.integers(1, 9)
generations = st.sampled_from([1, 1, 1, 2])
turns = st.lists(st.builds(Turn, st.just("user"), st.sampled_from("xyz")), max_size=2).map(tuple)
contexts = st.builds(WorkingContext, st.sampled_from([("/1",), ("/2", "/1")]))
results = st.builds(result, st.just(RunId("a")), st.just(EndReason.COMPLETED), generations) | st.builds(
    result, runs, st.just(EndReason.KILLED), generations
)
operations: st.SearchStrategy[Operation] = st.one_of(
    st.builds(StartRun, runs, times, hosts, generations),
    st.builds(Progress, runs, times, generations, st.builds(Usage, input_tokens=times), times),
    st.builds(FinishRun, results, times),
    st.builds(CondenseResult, st.builds(condensed, results, times)),
    st.builds(MergeResult, runs, sessions, times, generations, st.none() | contexts, turns),
    st.builds(AppendTurns, sessions, times, turns),
    st.builds(SaveContext, sessions, times, contexts),
    st.builds(OpenSession, sessions, times),
    st.one_of(
        st.builds(RestartRun, runs, times, hosts, st.sampled_from([2, 3])),
        st.builds(RequestCancel, runs, times, st.sampled_from("xy")),
        st.builds(DeliveryFailed, runs, st.just("e"), times),
        st.builds(DeadLetter, times, st.just("r"), st.just("p"), sessions, runs),
        st.builds(ReplayDeadLetter, st.sampled_from([1, 2]), times),
        st.builds(MarkSwept, runs, times),
        st.builds(DeleteRun, runs),
        st.builds(SaveCheckpoint, sessions, times, st.just("d")),
    ),
    st.one_of(
        st.builds(HostHeartbeat, hosts, times),
        st.builds(HostStopped, hosts, times),
        st.builds(ClaimSession, sessions, hosts, times),
        st.builds(ReleaseSession, sessions, hosts),
        st.builds(CompleteSession, sessions, times),
    ),
)
refusals: st.SearchStrategy[Operation] = st.one_of(
    st.builds(AcceptRun, st.builds(packet, runs), times, hosts, idempotency_key=st.none() | st.just("k")),
    st.builds(HostStarted, hosts, times, times, times),
    st.builds(FinishRun, st.just(result(RunId("c"), EndReason.KILLED, 1)), times),
)
transactions = st.lists(operations, min_size=1, max_size=3)
histories = st.lists(transactions, min_size=4, max_size=30) | st.lists(
    transactions | st.lists(refusals, min_size=1, max_size=1), min_size=4, max_size=30
)
# Run a is under way, run b is accepted, and nobody knows run c.
OPENING: Transactions = [
    [HostStarted("h1", 1, 1, 5), HostStarted("h2", 1, 1, 5), OpenSession(PARENT, 1)],
    [*(OpenSession(packet(RunId(name)).session_key, 1) for name in "abc")],
    [AcceptRun(packet(RunId("a")), 1, "h1"), StartRun(RunId("a"), 1, "h1"), AcceptRun(packet(RunId("b")), 1, "h1")],
]


def outcomes(store: Store, handed_in: Transactions) -> list[object]:
    """Hand everything in, then ask how each went: on a loop that is one group, elsewhere one by one."""
    commits = [store.transaction(*operations) for operations in handed_in]
    heard: list[object] = []
    for commit in commits:
        try:
            heard.append(commit.result(10))
        except Exception as error:  # noqa: BLE001 - both ways must refuse alike
            heard.append((type(error), str(error)))
    return heard


def rows(store: Store) -> dict[str, Any]:
    return {table: store._reader.rows(f"SELECT * FROM {table}") for table in TABLES}  # noqa: S608 - the names above


def one_by_one(handed_in: Transactions) -> tuple[object, object]:
    with Store.open(":memory:", wall_ms=lambda: 0, inline=True) as store:
        return outcomes(store, handed_in), rows(store)


async def in_one_group(handed_in: Transactions) -> tuple[object, object]:
    with Store.open(":memory:", wall_ms=lambda: 0, inline=True) as store:
        return outcomes(store, handed_in), rows(store)


@pytest.mark.slow  # each example makes two stores
@settings(max_examples=so_far(60, 2_000))
@given(histories)
@example(
    [
        [StartRun(RunId("b"), 2, "h1"), AppendTurns(PARENT, 2, (Turn("user", "x"),))],
        [AppendTurns(PARENT, 3, (Turn("user", "y"),))],
    ]
)
def test_grouping_cannot_be_told_from_committing_one_by_one(history: Transactions) -> None:
    """Any history of any operations: who wins, who is late, who is refused, and every row."""
    whole = [*OPENING, *history]
    assert asyncio.run(in_one_group(whole)) == one_by_one(whole)
