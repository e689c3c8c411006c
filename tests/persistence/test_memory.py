"""The memory store means what the durable one means: the same work, the same answers, the same things to read."""

from __future__ import annotations

import asyncio
import inspect
import random
from dataclasses import fields
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest
from _extent import so_far
from _given import a_result

from understudy.persistence import (
    DuplicateRunError,
    IngestConflictError,
    MemoryStore,
    Store,
    StoreClosedError,
    StoreError,
    search,
)
from understudy.persistence import operations as op
from understudy.persistence.memory import _search as memory_search
from understudy.persistence.memory._runs import MemoryRuns
from understudy.persistence.memory._search import MemorySearch
from understudy.persistence.memory._sessions import MemoryDeadLetters, MemoryHosts, MemoryOutbox, MemorySessions
from understudy.persistence.memory._transcripts import MemoryTranscripts
from understudy.protocol import (
    EndReason,
    Event,
    Failure,
    RunId,
    SessionKey,
    SpawnPacket,
    SubAgentResult,
    Usage,
    WorkingContext,
)
from understudy.protocol.model import ToolCall, Turn
from understudy.protocol.summary import ResultSummary

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from understudy.persistence import Ledger

SECRET = "correct-horse-7"  # noqa: S105 - of nobody
SESSIONS = [SessionKey(f"agent:atlas:{name}") for name in ("main", "a", "b", "c")]
RUNS = [RunId(f"run-{number}") for number in range(5)]
HOSTS = ["h1", "h2"]
WORDS = ["often", "often", "often", "some", "some", "rare", "naïve", "na\u0308ive"]
TEXTS = [
    *("plain words", "Plain WORDS again", f"it is {SECRET}", "password: hunter22", "naïve café", "nul \0 and \ud800"),
    *("x_y z%", "", "token ghp_0123456789abcdefghij0123"),
]
IDS = ["c0", "c1", f"c {SECRET}", "c \0"]


class Drawn:
    """Operations out of a few names, so that they meet: chance decides, and a seed decides chance."""

    def __init__(self, rng: random.Random) -> None:
        self.pick = rng.choice
        self.rng = rng
        self.now = 0

    def at(self) -> int:
        """Mostly a little later; now and then the wall clock steps back."""
        self.now = max(0, self.now + self.rng.choice((0, 1, 1, 5, 5, -8)))
        return self.now

    def key(self) -> SessionKey:
        # Mostly the ones that are opened first: a transaction on an unknown session is refused as a whole.
        return self.pick(SESSIONS[:3]) if self.rng.random() < 0.95 else SESSIONS[3]

    def maybe(self, value: Any) -> Any:
        return value if self.rng.random() < 0.5 else None

    def merge(self) -> op.MergeResult:
        return op.MergeResult(
            self.pick(RUNS), self.key(), self.at(), self.pick((1, 1, 2)), self.maybe(self.context()), self.turns()
        )

    def turns(self) -> tuple[Turn, ...]:
        return tuple(
            Turn(
                self.pick(("user", "assistant", "tool")),
                self.pick(TEXTS),
                (ToolCall(self.pick(IDS), "read", self.arguments()),) if self.maybe(1) else (),
                self.maybe(self.pick(IDS)),
            )
            for _ in range(self.rng.randrange(3))
        )

    def arguments(self) -> dict[str, Any]:
        return {"path": self.pick(TEXTS), "deep": [{"api_key": "abcd1234"}, {self.pick(TEXTS): 1}]}

    def usage(self) -> Usage:
        # Quarters add up exactly in any order.
        return Usage(input_tokens=self.rng.randrange(9), output_tokens=2, cost_usd=self.rng.randrange(9) / 4)

    def packet(self) -> SpawnPacket:
        number = self.rng.randrange(len(RUNS))
        return SpawnPacket(
            run_id=RUNS[number],
            session_key=self.pick(SESSIONS),
            parent_session_key=self.key(),
            parent_run_id=self.maybe(RUNS[0]),
            root_session_key=SESSIONS[0],
            depth=1,
            max_depth=3,
            task=self.pick(("do it", f"use {SECRET}")),
            label=self.pick(("l", f"label {SECRET}")),
            runner=self.pick(("default", "other")),
            workspace_dir="/w",
            cwd="/w",
            env={"API_KEY": "abc12345", "HOME": "/h"} if self.maybe(1) else {},
            max_steps=3,
            timeout_ms=10,
            deadline_at=self.maybe(99),
            cleanup=self.pick(("delete", "keep")),
            spec_id=self.maybe("spec"),
        )

    def result(self) -> SubAgentResult:
        completed = self.rng.random() < 0.5
        return SubAgentResult(
            run_id=self.pick(RUNS),
            generation=self.pick((1, 1, 1, 2)),
            session_key=self.pick(SESSIONS),
            parent_session_key=self.key(),
            label="l",
            end_reason=EndReason.COMPLETED if completed else self.pick((EndReason.FAILED, EndReason.KILLED)),
            failure=None if completed else Failure(kind="killed", message=self.pick(("no", SECRET))),
            partial=not completed and self.rng.random() < 0.3,
            output=self.pick(("done", f"done, {SECRET}", "nul \0 done")),
            usage=self.usage(),
            steps=self.rng.randrange(5),
        )

    def summarized(self) -> SubAgentResult:
        words = self.pick(TEXTS[:5])
        summary = ResultSummary(
            task_complete=True, summary=f"short {words}", key_data=(words, f"password: {words}"), confidence=0.5
        )
        return self.result().model_copy(update={"summary": summary, "output": summary.render()})

    def context(self) -> WorkingContext:
        return WorkingContext(tuple(self.rng.sample(("/a", "/b", "/ü"), 2)), self.maybe("/p"))

    def focus(self) -> tuple[tuple[str, ...] | None, tuple[str, ...] | None]:
        return self.pick((None, (), (self.pick(TEXTS),))), self.pick((None, (), ("c", self.pick(TEXTS))))

    def operation(self) -> op.Operation:
        kinds: Sequence[Callable[[], op.Operation]] = (
            lambda: op.HostStarted(self.pick(HOSTS), 1, 2, self.at()),
            lambda: op.HostHeartbeat(self.pick(HOSTS), self.at()),
            lambda: op.HostStopped(self.pick(HOSTS), self.at()),
            lambda: op.OpenSession(
                self.key(),
                self.at(),
                agent_id=self.pick(("default", "other")),
                visibility=self.pick(("isolated", "shared")),
                parent_session_key=self.maybe(SESSIONS[0]),
                harness=self.maybe("cli"),
                project=self.maybe("p"),
                title=self.maybe(self.pick(TEXTS)),
            ),
            lambda: op.ClaimSession(self.key(), self.pick(HOSTS), self.now - 2),
            lambda: op.ReleaseSession(self.key(), self.pick(HOSTS)),
            lambda: op.CompleteSession(self.key(), self.at()),
            lambda: op.SetLineage(self.key(), self.pick(SESSIONS), SESSIONS[0], 1, self.pick((True, False))),
            lambda: op.SetObjective(self.key(), self.pick(TEXTS)),
            *(
                [
                    lambda: op.AcceptRun(
                        self.packet(),
                        self.at(),
                        self.pick(HOSTS),
                        queued=self.rng.random() < 0.3,
                        announce=self.rng.random() < 0.3,
                        is_follow_up=self.rng.random() < 0.3,
                        idempotency_key=self.maybe(self.pick(("k1", "k2"))),
                        digest=self.maybe("d"),
                        started=self.rng.random() < 0.3,
                    )
                ]
                * 3
            ),
            *(
                [
                    lambda: op.StartRun(
                        self.pick(RUNS), self.at(), self.pick(HOSTS), self.pick((1, 1, 2)), self.maybe(77)
                    )
                ]
                * 2
            ),
            lambda: op.RestartRun(self.pick(RUNS), self.at(), self.pick(HOSTS), self.pick((1, 2, 3))),
            lambda: op.Progress(
                self.pick(RUNS), self.at(), self.pick((1, 1, 2)), self.maybe(self.usage()), self.maybe(4)
            ),
            lambda: op.RequestCancel(self.pick(RUNS), self.at(), self.pick(TEXTS)),
            *(
                [
                    lambda: op.FinishRun(
                        self.result(),
                        self.at(),
                        self.maybe(self.pick(TEXTS)),
                        self.maybe(self.pick(SESSIONS)),
                        self.maybe(self.merge()),
                    )
                ]
                * 4
            ),
            *([lambda: op.CondenseResult(self.summarized())] * 2),
            *([self.merge] * 4),
            lambda: op.DeliveryFailed(self.pick(RUNS), self.pick(TEXTS), self.at()),
            lambda: op.DeadLetter(
                self.at(), self.pick(TEXTS), self.pick(TEXTS), self.maybe(self.key()), self.maybe(self.pick(RUNS))
            ),
            lambda: op.ReplayDeadLetter(self.rng.randrange(1, 4), self.at()),
            lambda: op.SaveContext(self.key(), self.at(), self.context()),
            lambda: op.RecordEvent(
                Event(
                    "session:sub_agent_turn",
                    self.at(),
                    self.key(),
                    self.maybe(self.pick(RUNS)),
                    data={"text": self.pick(TEXTS), "accessToken": "abcd1234", "n": 1},
                )
            ),
            lambda: op.DeleteRun(self.pick(RUNS)),
            lambda: op.MarkExported(self.pick(RUNS), self.at()),
            lambda: op.MarkSwept(self.pick(RUNS), self.at()),
            lambda: op.SetIngestOffset(
                "/t", self.key(), self.rng.randrange(2), self.pick("xy"), self.maybe((self.rng.randrange(2), "x"))
            ),
            *([lambda: op.AppendTurns(self.key(), self.at(), self.turns(), self.maybe(self.pick(RUNS)))] * 3),
            *([lambda: op.CompactHistory(self.key(), self.at(), self.pick(TEXTS), self.rng.randrange(4))] * 2),
            *([lambda: op.SaveCheckpoint(self.key(), self.at(), self.pick(TEXTS), "explicit", *self.focus())] * 2),
        )
        return self.pick(kinds)()

    def transaction(self) -> list[op.Operation]:
        work = [self.operation() for _ in range(self.pick((1, 1, 1, 2, 3)))]
        # Of a transaction that is wrong in two ways either may be told: the second spawn goes by itself.
        accepted = [new for new in work if isinstance(new, op.AcceptRun)]
        return [new for new in work if new not in accepted[1:]]


def told(ask: Callable[[], object]) -> object:
    """An answer, or the kind of error it was: the words of SQLite are its own."""
    try:
        return ask()
    except (StoreError, LookupError, ValueError) as error:
        if isinstance(error, DuplicateRunError):
            return type(error), error.run_id, error.digest
        return type(error)


def everything(store: Ledger) -> dict[str, object]:
    """Whatever can be asked of a store."""
    runs, sessions = store.runs, store.sessions
    asked: dict[str, Callable[[], object]] = {
        "find": lambda: runs.find(limit=2),
        "next page": lambda: runs.find(limit=2, cursor=runs.find(limit=2).cursor),
        "unfinished": runs.unfinished,
        "unfinished of h1": lambda: runs.unfinished(host="h1"),
        "abandoned": lambda: runs.abandoned(stale_before=3),
        "queued": runs.queued,
        "unexported": runs.unexported,
        "first unexported": lambda: runs.unexported(limit=1),
        "other unexported": lambda: runs.unexported(after=next(iter(runs.unexported(limit=1)), None)),
        "sweepable": lambda: runs.sweepable(ended_before=50),
        "usage": lambda: runs.usage(SESSIONS[0]),
        "hosts": store.hosts.running,
        "undelivered": store.outbox.undelivered,
        "undelivered or dead": lambda: store.outbox.undelivered(dead=True),
        "of agent": lambda: [runs.find(agent_id=agent, limit=2) for agent in ("default", "nobody")],
        "letters": store.dead_letters.find,
        "letters of agent": lambda: store.dead_letters.find(agent_id="default", replayed=True),
        "all letters": lambda: store.dead_letters.find(replayed=True, limit=1),
        "first letter": lambda: store.dead_letters.get(1),
        "sessions": lambda: sessions.find(limit=2),
        "sessions of other": lambda: sessions.find(agent_id="other"),
        "below": lambda: sessions.children(SESSIONS[0]),
        "recent": lambda: sessions.most_recent(project="p", harness="cli", agent_id="default", other_than=SESSIONS[1]),
        "ingested": lambda: store.transcripts.taken_in("/t"),
    }
    for status in ("pending", "running", "completed", "failed"):
        asked[status] = lambda status=status: runs.find(status=status, runner="default", since=2)  # type: ignore[misc]
    for query in ("plain", "words again", "cafe", "x_y", "z%", SECRET, "redacted", str(SESSIONS[1]), "%", "nowhere"):
        asked[f"search {query}"] = lambda query=query: store.search(query, agent_id="default")  # type: ignore[misc]
        asked[f"shared search {query}"] = lambda query=query: store.search(  # type: ignore[misc]
            query, agent_id="other", visibility="shared", session_key=SESSIONS[1], limit=3
        )
    for run in RUNS:
        asked |= {
            f"{ask.__name__} {run}": lambda ask=ask, run=run: ask(run)  # type: ignore[misc]
            for ask in (runs.get, runs.result, runs.full_output, runs.late_endings, runs.events)
        }
    for key in SESSIONS:
        asked |= {
            f"{name} {key}": lambda ask=ask, key=key: ask(key)  # type: ignore[misc]
            for name, ask in {
                "session": sessions.get,
                "context": sessions.working_context,
                "checkpoint": sessions.checkpoint,
                "earlier checkpoint": lambda key: sessions.checkpoint(key, until=5),
                "compaction": store.transcripts.compaction,
                "waiting for": store.outbox.undelivered,
                "backlog": store.outbox.backlog,
                "children": runs.children,
                "open children": lambda key: runs.children(key, unfinished=True),
                "open tree": lambda key: runs.unfinished(root_session_key=key),
                "queued": runs.queued,
                "usage below": runs.usage_below,
                "of parent": lambda key: runs.find(parent_session_key=key),
                "of session": lambda key: runs.find(session_key=key, spec_id="spec"),
                "turns": store.transcripts.turns,
                "later turns": lambda key: store.transcripts.turns(key, after=3, limit=2),
                "latest turns": lambda key: store.transcripts.latest(key, 2),
                "latest before": lambda key: store.transcripts.latest(key, 2, before=4),
                "last turn": store.transcripts.last,
                "tail": lambda key: store.transcripts.tail(key, 25, after=1),
                "text": store.transcripts.text,
            }.items()
        }
        for key_name in ("k1", "k2"):
            asked[f"{key_name} of {key}"] = lambda key=key, name=key_name: runs.by_idempotency_key(key, name)  # type: ignore[misc]
    return {name: told(ask) for name, ask in asked.items()}


def differences(memory: Ledger, database: Ledger) -> dict[str, tuple[object, object]]:
    """What the two say differently; empty when they mean the same."""
    first, second = everything(memory), everything(database)
    return {name: (first[name], second[name]) for name in first if first[name] != second[name]}


def both() -> tuple[MemoryStore, Store]:
    """The two stores, with the same sessions open."""
    memory = MemoryStore(wall_ms=lambda: 0, secrets=[SECRET])
    database = Store.open(":memory:", wall_ms=lambda: 0, secrets=[SECRET], inline=True)
    for store in (memory, database):
        store.transaction(*(op.OpenSession(key, at=0) for key in SESSIONS[:3])).result()
    return memory, database


@pytest.mark.parametrize("seed", range(so_far(10, 100)))
def test_every_answer_and_every_read_is_the_same(seed: int) -> None:
    """One transaction after the other, on both stores: refused by both or by none, and nothing to tell them apart."""
    drawn = Drawn(random.Random(seed))
    memory, database = both()
    with memory, database:
        for _ in range(30):
            work = drawn.transaction()
            answers = [told(store.transaction(*work).result) for store in (memory, database)]
            assert answers[0] == answers[1], work
            assert not differences(memory, database), work


@pytest.mark.parametrize("seed", range(so_far(6, 30)))
def test_windows_of_a_search_are_the_same(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is ranked, what is newest first and what a named session is asked itself, on either side of each bound."""
    for module in (search, memory_search):
        for name, size in {"WINDOW": 4, "SHORT": 5, "SUBSTRING_WINDOW": 12}.items():
            monkeypatch.setattr(module, name, size)
    rng = random.Random(seed)
    said = [
        op.AppendTurns(
            rng.choice(SESSIONS[:3]), 1, (Turn("user", " ".join(rng.choices(WORDS, k=rng.randrange(1, 6)))),)
        )
        for _ in range(40)
    ]
    memory, database = both()
    with memory, database:
        for store in (memory, database):
            store.transaction(op.OpenSession(SESSIONS[3], 1, agent_id="other")).result()
            store.transaction(*said).result()
        for query, key, limit in product(
            [*WORDS, "often rare", "rare nowhere", "ofte", "e"], [None, *SESSIONS], (1, 3, 9)
        ):
            found = [
                store.search(query, agent_id="default", session_key=key, limit=limit) for store in (memory, database)
            ]
            assert found[0] == found[1], (query, key, limit)


@pytest.mark.parametrize("seed", range(so_far(10, 100)))
def test_a_group_commit_is_one_after_the_other(seed: int) -> None:
    """What a database commits together ends as if each had been committed alone, which is what memory does."""
    drawn = Drawn(random.Random(seed))
    memory, database = both()

    async def together(works: list[list[op.Operation]]) -> list[object]:
        # Handed in within one tick of the loop: one group.
        commits = [database.transaction(*work) for work in works]
        assert len(works) == 1 or not commits[0].done
        return [told(commit.result) for commit in commits]

    with memory, database:
        for _ in range(8):
            works = [drawn.transaction() for _ in range(6)]
            # A session opened later in a group is open for the whole of it: the only order a group does not keep.
            works = [[new for new in work if not _unopened(new)] for work in works]
            alone = [told(memory.transaction(*work).result) for work in works]
            assert asyncio.run(together(works)) == alone, works
            assert not differences(memory, database), works


def _unopened(new: op.Operation) -> bool:
    return getattr(new, "session_key", None) == SESSIONS[3]


@pytest.mark.parametrize("kind", ["memory", "database"])
def test_two_words_about_one_run_in_one_transaction_are_two_words(kind: str) -> None:
    """The first end wins and the second is late; a result is merged once, with its turns."""
    store: Ledger = both()[0 if kind == "memory" else 1]
    packet = Drawn(random.Random(1)).packet()
    end = SubAgentResult(
        run_id=packet.run_id,
        session_key=packet.session_key,
        parent_session_key=SESSIONS[0],
        label="l",
        end_reason=EndReason.COMPLETED,
        output="done",
    )
    said = (Turn("user", "once"),)
    answers = store.transaction(
        op.AcceptRun(packet, 1, "h1"),
        op.StartRun(packet.run_id, 1, "h1"),
        op.StartRun(packet.run_id, 2, "h1"),
        op.FinishRun(end, 3),
        op.FinishRun(end, 4),
        op.MergeResult(packet.run_id, SESSIONS[0], 5, turns=said),
        op.MergeResult(packet.run_id, SESSIONS[0], 6, turns=said),
    ).result()
    assert answers == (None, True, False, True, False, True, False)
    assert store.transcripts.text(SESSIONS[0]) == "user: once"
    assert [late.at for late in store.runs.late_endings(packet.run_id)] == [4]
    store.close()


@pytest.mark.parametrize("kind", ["memory", "database"])
@pytest.mark.parametrize("together", [True, False])
def test_only_the_end_that_wins_is_merged_with_it(kind: str, together: bool) -> None:
    """What the parent would be told of an end that came second is never told, and nothing waits any more."""
    store: Ledger = both()[0 if kind == "memory" else 1]
    packet = Drawn(random.Random(1)).packet()
    ends = [
        op.FinishRun(
            a_result(packet, output=said),
            at,
            merge=op.MergeResult(
                packet.run_id, SESSIONS[0], at, context=WorkingContext((f"/{said}",)), turns=(Turn("user", said),)
            ),
        )
        for at, said in enumerate(("first", "second"), start=3)
    ]
    opened: list[op.Operation] = [op.OpenSession(key, 1) for key in SESSIONS]
    opened.append(op.AcceptRun(packet, 1, "h1", started=True))
    if together:
        answers = store.transaction(*opened, *ends).result()[-2:]
    else:
        store.transaction(*opened).result()
        answers = tuple(store.transaction(end).result()[0] for end in ends)
    assert answers == (True, False)
    assert store.transaction(op.MergeResult(packet.run_id, SESSIONS[0], 9)).result() == (False,)
    assert store.transcripts.text(SESSIONS[0]) == "user: first"
    context, record = store.sessions.working_context(SESSIONS[0]), store.runs.get(packet.run_id)
    assert context is not None
    assert record is not None
    assert (context.recent_files, record.facts.ended_at, record.facts.delivered_at) == (("/first",), 3, 3)
    assert (store.outbox.undelivered(dead=True), store.problems()) == ([], [])
    store.close()


@pytest.mark.parametrize("kind", ["memory", "database"])
def test_a_context_for_an_unknown_session_is_refused_and_is_nobodys(kind: str) -> None:
    """It must not become the context of another session."""
    store: Ledger = both()[0 if kind == "memory" else 1]
    with pytest.raises(StoreError):
        store.transaction(op.SaveContext(SESSIONS[3], 1, WorkingContext(("/a",)))).result()
    assert [store.sessions.working_context(key) for key in SESSIONS] == [None] * 4
    store.close()


@pytest.mark.parametrize("kind", ["memory", "database"])
def test_tool_calls_may_hold_anything_and_give_no_secret_away(kind: str) -> None:
    """A lone surrogate does not fail the turn, and a secret is found whatever letters it has."""
    secret = "pässwörter"  # noqa: S105 - of nobody
    store: Ledger = (
        MemoryStore(wall_ms=lambda: 0, secrets=[secret])
        if kind == "memory"
        else Store.open(":memory:", wall_ms=lambda: 0, secrets=[secret], inline=True)
    )
    call = ToolCall("c", "type", {"text": f"it is {secret}", "odd": "\ud800"})
    store.transaction(
        op.OpenSession(SESSIONS[0], 1), op.AppendTurns(SESSIONS[0], 1, (Turn("assistant", "", (call,)),))
    ).result()
    (stored,) = store.transcripts.turns(SESSIONS[0])
    assert stored.turn.tool_calls[0].arguments == {"text": "it is [redacted]", "odd": "?"}
    store.close()


def test_the_arguments_of_a_call_are_kept_as_they_were() -> None:
    """Who changes them after the commit changes nothing that is kept."""
    memory, _ = both()
    arguments: dict[str, Any] = {"path": "/a"}
    memory.transaction(op.AppendTurns(SESSIONS[0], 1, (Turn("assistant", "", (ToolCall("c", "read", arguments),)),)))
    arguments["path"] = "/b"
    assert memory.transcripts.turns(SESSIONS[0])[0].turn.tool_calls[0].arguments == {"path": "/a"}


@pytest.mark.parametrize("seed", range(so_far(10, 100)))
def test_what_fails_leaves_nothing_behind(seed: int) -> None:
    """Whatever a transaction did before its hook struck, or before its last step was refused, is taken back."""
    struck = False

    def strike(point: str) -> None:
        if struck and point.endswith(".before"):
            raise InterruptedError(point)

    drawn = Drawn(random.Random(seed))
    with MemoryStore(wall_ms=lambda: 0, secrets=[SECRET], commit_hook=strike) as store:
        store.transaction(*(op.OpenSession(key, at=0) for key in SESSIONS[:3])).result()
        for _ in range(8):
            for _ in range(4):
                store.transaction(*drawn.transaction())
            before = everything(store)
            struck = True
            work = [drawn.operation() for _ in range(4)]
            with pytest.raises((InterruptedError, StoreError, LookupError)):
                store.transaction(*work, point="accept").result()
            with pytest.raises((LookupError, StoreError)):
                store.transaction(*work, op.SaveCheckpoint(SessionKey("nowhere"), 1, "d")).result()
            struck = False
            assert everything(store) == before, work


def test_a_strike_after_the_commit_reaches_the_caller_and_the_commit_stands() -> None:
    """As a process that dies right after its COMMIT."""

    def strike(point: str) -> None:
        seen.append(point)
        if point == "accept.after":
            raise InterruptedError(point)

    seen: list[str] = []
    with MemoryStore(wall_ms=lambda: 0, commit_hook=strike) as store:
        commit = store.transaction(op.OpenSession(SESSIONS[0], 1), point="accept")
        assert commit.done
        with pytest.raises(InterruptedError):
            commit.result()
        assert store.sessions.get(SESSIONS[0]) is not None
        store.transaction(op.CompleteSession(SESSIONS[0], 2)).result()
    assert seen == ["accept.before", "accept.after"]


def test_a_commit_is_decided_when_it_is_given() -> None:
    """To await it does not even turn the loop."""
    memory, _ = both()

    async def ask() -> object:
        turned = False

        def turn() -> None:
            nonlocal turned
            turned = True

        asyncio.get_running_loop().call_soon(turn)
        answers = await memory.transaction(op.CompleteSession(SESSIONS[0], 1), op.CompleteSession(SESSIONS[0], 2))
        assert not turned
        return answers

    assert asyncio.run(ask()) == (True, False)


@pytest.mark.parametrize(
    "kind",
    [
        *(MemoryRuns, MemorySessions, MemoryHosts, MemoryOutbox, MemoryDeadLetters, MemoryTranscripts),
        MemorySearch,
    ],
)
def test_every_question_has_an_answer_in_memory(kind: type) -> None:
    """None is left to the class that would ask a database."""
    questions = {name for name, _ in inspect.getmembers(kind.__base__, inspect.isfunction) if not name.startswith("_")}
    answered = {name for name in questions if name in vars(kind)}
    assert questions - answered <= {"text", "last"}  # ask `turns` and `latest`


def test_every_operation_is_drawn() -> None:
    """A new operation must join the comparison."""
    drawn = Drawn(random.Random(0))
    seen = {type(drawn.operation()) for _ in range(2000)}
    assert seen == set(op.Operation.__args__)
    assert all(fields(kind) for kind in seen)


def test_a_file_is_taken_in_as_by_a_database(tmp_path: Path) -> None:
    """Lines become turns once, and an offset that somebody else moved is a conflict."""
    file = tmp_path / "log.jsonl"
    memory, database = both()
    with memory, database:
        for text in ('{"role": "user", "content": "one"}\n', '{"role": "user", "content": "one"}\nplain\n', "anew\n"):
            file.write_text(text)
            taken = [store.ingest(file, SESSIONS[0]) for store in (memory, database)]
            assert taken[0] == taken[1]
        assert not differences(memory, database)
        with pytest.raises(IngestConflictError):
            memory.transaction(op.SetIngestOffset(str(file), SESSIONS[0], 9, "x", (1, "x"))).result()


def delivered(store: Ledger) -> SessionKey:
    """A store with one delivered run; gives the session it ran in."""
    drawn = Drawn(random.Random(3))
    packet = drawn.packet().model_copy(update={"run_id": RUNS[0]})
    end = drawn.result().model_copy(update={"run_id": RUNS[0], "generation": 1})
    store.transaction(
        *(op.OpenSession(key, 1) for key in SESSIONS),
        op.AcceptRun(packet, 1, "h1", started=True),
        op.FinishRun(end, 2, full_output="all of it"),
        op.MergeResult(RUNS[0], SESSIONS[0], 3),
    ).result()
    return packet.session_key


def test_results_are_exported_where_there_is_a_place_for_them(tmp_path: Path) -> None:
    """The same files as from a database, and gone when they are swept."""
    memory = MemoryStore(wall_ms=lambda: 0, results_dir=tmp_path / "memory")
    database = Store.open(tmp_path / "store.db", wall_ms=lambda: 0, inline=True)
    written = []
    with memory, database:
        for store in (memory, database):
            path = store.results.path(delivered(store), RUNS[0])
            assert store.results.export_pending() == [RUNS[0]]
            written.append(path.read_text())
            assert store.results.sweep(ended_before=9) == [RUNS[0]]
            assert not path.exists()
        assert written[0] == written[1]
        assert not differences(memory, database)


def test_a_run_is_forgotten_with_its_file(tmp_path: Path) -> None:
    """In memory as in a database, once."""
    memory = MemoryStore(wall_ms=lambda: 0, results_dir=tmp_path / "memory")
    database = Store.open(tmp_path / "store.db", wall_ms=lambda: 0, inline=True)
    with memory, database:
        for store in (memory, database):
            path = store.results.path(delivered(store), RUNS[0])
            assert store.results.export(RUNS[0]) == path
            assert [store.results.forget(RUNS[0]), store.results.forget(RUNS[0])] == [True, False]
            assert not path.exists()
            assert store.results.export(RUNS[0]) is None
        assert not differences(memory, database)


def test_without_a_folder_results_are_not_exported_but_their_time_is_over_all_the_same() -> None:
    """The sentence says what to do; retention and forgetting need no folder."""
    with MemoryStore(wall_ms=lambda: 0) as store:
        delivered(store)
        with pytest.raises(StoreError, match="results_dir"):
            store.results.export_pending()
        assert store.results.sweep(ended_before=9) == [RUNS[0]]
        assert store.results.forget(RUNS[0])


def test_a_closed_store_says_so() -> None:
    """Both ways, and closing twice is fine."""
    memory, _ = both()
    memory.close()
    memory.close()
    with pytest.raises(StoreClosedError):
        memory.transaction(op.CompleteSession(SESSIONS[0], 1))
    with pytest.raises(StoreClosedError):
        memory.sessions.get(SESSIONS[0])
