"""What each operation does to its rows, and what it answers: the promises the lifecycle is built on."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

import pytest

from understudy.persistence import DuplicateRunError, LateEnding, Store, StoreError
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
    Progress,
    RecordEvent,
    ReleaseSession,
    ReplayDeadLetter,
    RequestCancel,
    RestartRun,
    StartRun,
)
from understudy.protocol import EndReason, Event, Failure, RunFacts, Usage
from understudy.protocol.model import ToolCall, Turn
from understudy.protocol.run_facts import IllegalFactsError
from understudy.protocol.summary import ResultSummary

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from conftest import Doorstop, Given

    from understudy.persistence import RunRecord
    from understudy.persistence.operations import Answer, Operation

SUMMARY = ResultSummary(task_complete=True, summary="short", conclusions=("it holds",), confidence=0.75)


class Say:
    """Commits operations, each in a transaction of its own, and gives their answers.

    ``together`` has the writer find them in one group: whatever holds one by one must hold there too.
    """

    def __init__(self, store: Store, doorstop: Doorstop, *, together: bool) -> None:
        self.store = store
        self._doorstop = doorstop
        self._together = together

    def __call__(self, *operations: Operation) -> list[Answer]:
        if not self._together:
            return [self.store.transaction(operation).result(10)[0] for operation in operations]
        self._doorstop.hold(self.store)
        commits = [self.store.transaction(operation) for operation in operations]
        self._doorstop.release()
        return [commit.result(10)[0] for commit in commits]


@pytest.fixture(params=[False, True], ids=["one-by-one", "in-one-group"])
def say(request: pytest.FixtureRequest, path: Path, doorstop: Doorstop, given: Given) -> Iterator[Say]:
    """A store in which run 1 is accepted and started, and run 2 accepted."""
    with Store.open(path, wall_ms=lambda: 0, commit_hook=doorstop) as store:
        store.transaction(given.opened(), *given.accept(1), given.start(1), *given.accept(2)).result(10)
        yield Say(store, doorstop, together=request.param)
        assert store.problems() == []


def run(store: Store, given: Given, number: int = 1) -> RunRecord:
    found = store.runs.get(given.run_id(number))
    assert found is not None
    return found


def facts(store: Store, given: Given, number: int = 1) -> RunFacts:
    return run(store, given, number).facts


class TestEndings:
    def test_the_first_end_wins_and_later_ones_are_recorded_as_late(self, say: Say, given: Given) -> None:
        """The result and the outbox entry are the winner's; a late end changes nothing."""
        killed = given.finish(1, EndReason.KILLED, at=1007)
        assert say(given.finish(1), killed, given.finish(1)) == [True, False, False]
        end = facts(say.store, given)
        assert (end.status, end.ended_at, end.failure) == ("completed", 1002, None)
        assert say.store.runs.result(given.run_id(1)) == given.result(1)
        assert say.store.runs.late_endings(given.run_id(1)) == [
            LateEnding(1, 1007, EndReason.KILLED),
            LateEnding(1, 1002, EndReason.COMPLETED),
        ]
        assert [entry.run_id for entry in say.store.outbox.undelivered()] == [given.run_id(1)]

    def test_an_end_of_an_unknown_run_is_refused(self, store: Store, given: Given) -> None:
        """It would be an end that nobody can ever find."""
        with pytest.raises(StoreError):
            store.transaction(given.finish(9)).result(10)

    def test_what_waits_can_be_ended_and_then_never_starts(self, say: Say, given: Given) -> None:
        """Of a queued run that is killed and a slot that comes free at the same time, the first one counts."""
        assert say(given.finish(2, EndReason.KILLED), given.start(2)) == [True, False]
        assert facts(say.store, given, 2).started_at is None

    def test_a_run_starts_once(self, say: Say, given: Given) -> None:
        """The second start is told so, and moves neither the time nor the deadline."""
        again = StartRun(given.run_id(2), 9000, "host-2", deadline_at=9999)
        assert say(StartRun(given.run_id(2), 2001, "host-1", deadline_at=5000), again) == [True, False]
        assert (facts(say.store, given, 2).started_at, facts(say.store, given, 2).deadline_at) == (2001, 5000)
        assert run(say.store, given, 2).host == "host-1"

    def test_usage_is_kept_as_it_comes_and_settled_by_the_end(self, say: Say, given: Given) -> None:
        """Progress gives totals; progress of an ended run, or of one that has not started, is none."""
        used = Usage(input_tokens=5, output_tokens=7, cost_usd=0.5)
        say(Progress(given.run_id(1), 1500, usage=used, steps=2), Progress(given.run_id(1), 1400))
        say_more = say.store.transaction(Progress(given.run_id(2), 2500, steps=9))
        say_more.result(10)
        record = run(say.store, given)
        assert (record.usage, record.steps, record.facts.last_progress_at) == (used, 2, 1500)
        assert (run(say.store, given, 2).steps, facts(say.store, given, 2).last_progress_at) == (0, None)
        say.store.transaction(given.finish(1, at=1600)).result(10)
        say.store.transaction(Progress(given.run_id(1), 1700, usage=used, steps=8)).result(10)
        assert (run(say.store, given).steps, facts(say.store, given).last_progress_at) == (3, 1500)

    def test_the_first_cancel_is_the_one_that_is_attributed(self, say: Say, given: Given) -> None:
        """And an ended run cannot be cancelled any more."""
        first, second = (RequestCancel(given.run_id(1), at, reason) for at, reason in ((1100, "stop"), (1200, "no")))
        late = RequestCancel(given.run_id(2), 2100, "too late")
        assert say(first, second, given.finish(2, EndReason.KILLED), late) == [True, False, True, False]
        assert (run(say.store, given).cancel_reason, facts(say.store, given).cancel_requested_at) == ("stop", 1100)
        assert run(say.store, given, 2).cancel_reason is None


class TestGenerations:
    def test_a_restart_fences_the_last_incarnation_off(self, say: Say, given: Given) -> None:
        """Its end is late, its progress is none; the new generation's end counts. Start and deadline stay."""
        assert say(
            RestartRun(given.run_id(1), 1100, "host-2", generation=2),
            Progress(given.run_id(1), 1200, steps=9),
            given.finish(1),
            given.finish(1, EndReason.FAILED, generation=2, at=1300),
        ) == [True, None, False, True]
        record = run(say.store, given)
        assert (record.facts.generation, record.host, record.restarted_at) == (2, "host-2", 1100)
        assert (record.facts.started_at, record.facts.status, record.facts.last_progress_at) == (1001, "failed", None)
        assert say.store.runs.late_endings(given.run_id(1)) == [LateEnding(1, 1002, EndReason.COMPLETED)]

    def test_of_two_that_restart_a_run_one_does(self, say: Say, given: Given) -> None:
        """Nor can an ended run be restarted, or a generation be left out."""
        again = [RestartRun(given.run_id(1), 1100, host, generation=2) for host in ("host-2", "host-3")]
        skip = RestartRun(given.run_id(1), 1100, "host-4", generation=4)
        ended = RestartRun(given.run_id(2), 2100, "host-2", generation=2)
        assert say(*again, skip, given.finish(2, EndReason.KILLED), ended) == [True, False, False, True, False]
        assert run(say.store, given).host == "host-2"

    def test_a_result_is_merged_under_its_own_generation_only(self, say: Say, given: Given) -> None:
        """Run and generation are the key of delivery."""
        restarted = RestartRun(given.run_id(1), 1100, "host-2", generation=2)
        ended = given.finish(1, generation=2, at=1300)
        late, right = given.merge(1), MergeResult(given.run_id(1), given.parent, 1400, generation=2)
        assert say(restarted, ended, late, right) == [True, True, False, True]


class TestCondensing:
    def test_a_waiting_result_becomes_shorter_and_what_was_said_stays(self, say: Say, given: Given) -> None:
        """Its summary, what that cost, and the full output, which the result no longer has."""
        ended = given.finish(1)
        usage = Usage(input_tokens=7, output_tokens=3, cost_usd=0.5)
        shorter = ended.result.model_copy(update={"output": "short", "usage": usage, "summary": SUMMARY})
        assert say(CondenseResult(shorter), ended, CondenseResult(shorter), given.merge(1)) == [False, True, True, True]
        assert say.store.runs.result(given.run_id(1)) == shorter
        assert say.store.runs.full_output(given.run_id(1)) == ended.result.output
        assert run(say.store, given).usage == usage

    def test_a_full_output_that_was_stored_is_not_replaced(self, store: Store, given: Given) -> None:
        """The head and tail it had been cut to are not what the run said."""
        ended = given.finish(1)
        store.transaction(given.opened(), *given.until("terminal", 1)).result(10)
        store.transaction(FinishRun(ended.result, ended.at, full_output="all of it")).result(10)
        shorter = CondenseResult(ended.result.model_copy(update={"output": "short"}))
        assert store.transaction(shorter).result(10) == (True,)
        assert store.runs.full_output(given.run_id(1)) == "all of it"

    def test_nothing_else_is_condensed(self, say: Say, given: Given) -> None:
        """Not what was delivered, not an older generation's, not another end's."""
        delivered = CondenseResult(given.result(1, output="short"))
        assert say(given.finish(1), given.merge(1), delivered) == [True, True, False]
        other = CondenseResult(given.result(2, EndReason.FAILED, output="short"))
        older = CondenseResult(given.result(2, generation=2, output="short"))
        assert say(given.start(2), given.finish(2), other, older) == [True, True, False, False]
        for number in (1, 2):
            stored = say.store.runs.result(given.run_id(number))
            assert stored is not None
            assert stored.output == given.result(number).output


class TestDelivery:
    def test_a_result_is_merged_exactly_once(self, say: Say, given: Given) -> None:
        """Delivered twice, the second time nothing is written: no turn, no context."""
        again = given.merge(1)
        assert say(given.merge(1), given.finish(1), given.merge(1), again) == [False, True, True, False]
        assert len(say.store.transcripts.turns(given.parent)) == 1
        assert say.store.outbox.undelivered(dead=True) == []
        assert facts(say.store, given).delivered_at == 1003

    def test_several_results_are_merged_in_one_transaction(self, store: Store, given: Given) -> None:
        """The turns stand in the order of the merges, the last context stays, each run is answered for."""
        for number in (1, 2, 3):
            store.transaction(*given.until("merge", number)).result(10)
        store.transaction(given.merge(2)).result(10)
        assert store.transaction(given.merge(3), given.merge(2), given.merge(1)).result(10) == (True, False, True)
        assert [row.turn.text.split()[1] for row in store.transcripts.turns(given.parent)] == ["2", "3", "1"]
        context = store.sessions.working_context(given.parent)
        assert context is not None
        assert context.recent_files == ("/w/1.py",)

    def test_a_run_that_occurs_twice_in_one_transaction_is_taken_in_order(self, store: Store, given: Given) -> None:
        """The first one counts there too: one start, one end, one merge."""
        late = given.finish(1, EndReason.KILLED, at=1009)
        store.transaction(given.opened(), *given.accept(1)).result(10)
        assert store.transaction(given.start(1), given.start(1)).result(10) == (True, False)
        steps = [Progress(given.run_id(1), 1002 + number, steps=number) for number in (1, 2, 3)]
        store.transaction(*steps).result(10)
        assert (run(store, given).steps, facts(store, given).last_progress_at) == (3, 1005)
        assert store.transaction(given.finish(1), late).result(10) == (True, False)
        assert facts(store, given).status == "completed"
        assert store.transaction(given.merge(1, generation=2), given.merge(1), given.merge(1)).result(10) == (
            *(False, True, False),
        )
        assert len(store.transcripts.turns(given.parent)) == 1

    def test_a_failed_delivery_is_counted_and_changes_no_outcome(self, say: Say, given: Given) -> None:
        """The next attempt is due when it says; the run stays as it ended."""
        say(
            given.finish(1),
            DeliveryFailed(given.run_id(1), "busy", next_attempt_at=1500),
            DeliveryFailed(given.run_id(1), "gone", next_attempt_at=1900),
        )
        (entry,) = say.store.outbox.undelivered(given.parent)
        assert (entry.attempts, entry.last_error, entry.next_attempt_at) == (2, "gone", 1900)
        assert facts(say.store, given).status == "completed"

    def test_a_dead_letter_is_set_aside_and_can_be_replayed_once(self, say: Say, given: Given) -> None:
        """Set aside it still counts as undelivered; replayed it starts over, and is merged once."""
        letter = DeadLetter(1500, "nobody there", "payload", given.parent, given.run_id(1))
        assert say(given.finish(1), DeliveryFailed(given.run_id(1), "x", 1400), letter) == [True, None, 1]
        store = say.store
        assert (store.outbox.undelivered(), store.outbox.backlog(given.parent)) == ([], 1)
        assert [entry.dead_at for entry in store.outbox.undelivered(dead=True)] == [1500]
        assert [(found.id, found.reason) for found in store.dead_letters.find().items] == [(1, "nobody there")]

        replay = [ReplayDeadLetter(number, 1600) for number in (1, 1, 7)]
        assert [store.transaction(again).result(10) for again in replay] == [(True,), (False,), (False,)]
        (entry,) = store.outbox.undelivered()
        assert (entry.attempts, entry.next_attempt_at, entry.dead_at) == (0, None, None)
        assert store.dead_letters.find().items == ()
        assert [found.replayed_at for found in store.dead_letters.find(replayed=True).items] == [1600]
        assert store.transaction(given.merge(1)).result(10) == (True,)
        assert store.outbox.backlog(given.parent) == 0

    def test_a_letter_without_a_run_is_kept_too(self, store: Store, given: Given) -> None:
        """A message left in a mailbox has a payload and a reason, and perhaps a session."""
        number = store.transaction(DeadLetter(5, "actor stopped", "hello", given.parent)).result(10)[0]
        assert isinstance(number, int)
        letter = store.dead_letters.get(number)
        assert letter is not None
        assert (letter.run_id, letter.payload, letter.replayed_at) == (None, "hello", None)
        assert store.transaction(ReplayDeadLetter(number, 6)).result(10) == (True,)

    def test_only_what_is_over_can_be_forgotten(self, say: Say, given: Given) -> None:
        """Running, then undelivered: it stays. Delivered: it goes, with its result."""
        forget = DeleteRun(given.run_id(1))
        assert say(forget, given.finish(1), forget, given.finish(1), given.merge(1), forget, forget) == [
            *(False, True, False, False, True, True, False),
        ]
        assert (say.store.runs.get(given.run_id(1)), say.store.runs.result(given.run_id(1))) == (None, None)


class TestIdempotency:
    def test_the_same_key_finds_the_same_run(self, store: Store, given: Given) -> None:
        """The error names the run and its digest, so that the caller can tell a retry from a conflict."""
        store.transaction(*given.accept(1, idempotency_key="k", digest="d")).result(10)
        with pytest.raises(DuplicateRunError) as refused:
            store.transaction(*given.accept(2, idempotency_key="k", digest="e")).result(10)
        assert (refused.value.run_id, refused.value.digest) == (given.run_id(1), "d")
        assert (store.runs.get(given.run_id(2)), store.sessions.get(given.child(2))) == (None, None)
        found = store.runs.by_idempotency_key(given.parent, "k")
        assert found is not None
        assert found.run_id == given.run_id(1)

    def test_two_of_the_same_key_in_one_group(self, path: Path, given: Given, doorstop: Doorstop) -> None:
        """Handed in together, the first is accepted and the second is told of it."""
        with Store.open(path, wall_ms=lambda: 0, commit_hook=doorstop) as store:
            doorstop.hold(store)
            first = store.transaction(*given.accept(1, idempotency_key="k"))
            second = store.transaction(*given.accept(2, idempotency_key="k"))
            other = store.transaction(*given.accept(3, idempotency_key="another"))
            doorstop.release()
            first.result(10)
            with pytest.raises(DuplicateRunError, match="run-1 was already accepted"):
                second.result(10)
            other.result(10)


class TestSessions:
    def test_a_session_is_held_by_one_live_host(self, say: Say, given: Given) -> None:
        """The second is told who holds it; a holder that stopped, went silent or let go holds nothing."""
        hosts = [HostStarted(name, pid=7, process_started=1, at=100) for name in ("a", "b", "c")]
        assert say(
            *hosts,
            ClaimSession(given.parent, "a", stale_before=50),
            ClaimSession(given.parent, "b", stale_before=50),
            ClaimSession(given.parent, "a", stale_before=50),
            ReleaseSession(given.parent, "b"),
            ReleaseSession(given.parent, "a"),
            ClaimSession(given.parent, "b", stale_before=50),
            HostStopped("b", at=200),
            HostStopped("b", at=300),
            ClaimSession(given.parent, "c", stale_before=50),
            ClaimSession(given.parent, "a", stale_before=101),
            HostHeartbeat("a", at=500),
            HostHeartbeat("b", at=500),
        ) == [*(None, None, None), *(None, "a", None), *(False, True, None), *(True, False, None), *(None, True, False)]
        session = say.store.sessions.get(given.parent)
        assert session is not None
        assert session.holder == "a"
        assert [(host.host, host.heartbeat_at) for host in say.store.hosts.running()] == [("a", 500), ("c", 100)]

    def test_a_session_that_is_not_there_cannot_be_held(self, store: Store, given: Given) -> None:
        """Who would claim it is told to open it."""
        with pytest.raises(LookupError, match="open it first"):
            store.transaction(ClaimSession(given.child(9), "a", stale_before=0)).result(10)

    def test_a_session_is_opened_and_completed_once(self, say: Say, given: Given) -> None:
        """Its beginning is never rewritten; of two ends the first is kept."""
        again = OpenSession(given.parent, at=900, title="another")
        assert say(again, CompleteSession(given.parent, 950), CompleteSession(given.parent, 960)) == [None, True, False]
        session = say.store.sessions.get(given.parent)
        assert session is not None
        assert (session.created_at, session.title, session.completed_at) == (1, None, 950)

    def test_runs_of_a_dead_host_are_found(self, say: Say, given: Given) -> None:
        """Abandoned is what has no end and whose host stopped, was never heard of, or is silent."""
        live = HostStarted(given.host, pid=7, process_started=1, at=100)
        assert len(say.store.runs.abandoned(stale_before=50)) == 2
        say(live, given.finish(2, EndReason.KILLED))
        assert say.store.runs.abandoned(stale_before=50) == []
        assert [found.run_id for found in say.store.runs.abandoned(stale_before=101)] == [given.run_id(1)]


class TestUntrustedText:
    """Half a surrogate pair, as a cut stream or a broken escape leaves it: UTF-8 has no bytes for it."""

    broken = "emoji \ud83d, name \udcff"
    mended = "emoji ?, name ?"

    def test_a_run_ends_whatever_its_child_said(self, store: Store, given: Given) -> None:
        """An end that cannot be written would be a result that is lost."""
        failure = Failure(kind="runner_crash", message=self.broken)
        said = given.result(1, EndReason.FAILED, output=self.broken).model_copy(update={"failure": failure})
        store.transaction(*given.until("terminal", 1)).result(10)
        assert store.transaction(FinishRun(said, 1002, full_output=self.broken)).result(10) == (True,)
        assert store.transaction(FinishRun(said, 1003)).result(10) == (False,)
        result, end = store.runs.result(given.run_id(1)), facts(store, given)
        assert result is not None
        assert end.failure is not None
        assert (result.output, end.failure.message) == (self.mended, self.mended)
        assert store.runs.full_output(given.run_id(1)) == self.mended

    def test_a_spawn_is_accepted_whatever_its_environment_holds(self, store: Store, given: Given) -> None:
        """A variable's value is any bytes; Python has them as lone surrogates."""
        packet = given.packet(1).model_copy(update={"env": {"NAME": self.broken}})
        store.transaction(OpenSession(given.child(1), at=1), AcceptRun(packet, 1000, given.host)).result(10)
        assert run(store, given).packet.env == {"NAME": self.mended}

    def test_turns_and_events_are_kept_whatever_they_hold(self, store: Store, given: Given) -> None:
        """A call and its result still belong together."""
        call = ToolCall(self.broken, "read", {"path": self.broken})
        turns = (Turn("assistant", self.broken, (call,)), Turn("tool", "x", tool_call_id=self.broken))
        event = Event("session:sub_agent_turn", 5, given.parent, given.run_id(1), data={"text": self.broken})
        store.transaction(AppendTurns(given.parent, 5, turns), RecordEvent(event)).result(10)
        assert [row.turn for row in store.transcripts.turns(given.parent)] == [
            Turn("assistant", self.mended, (ToolCall(self.mended, "read", {"path": self.mended}),)),
            Turn("tool", "x", tool_call_id=self.mended),
        ]
        assert [found.data for found in store.runs.events(given.run_id(1))] == [{"text": self.mended}]


class TestFacts:
    def test_a_clock_that_steps_back_does_not_make_a_run_unreadable(self, store: Store, given: Given) -> None:
        """The machine's clock was set back an hour in mid-run: order is kept, the facts stay believable."""
        store.transaction(*given.accept(5)).result(10)
        for operation in (
            StartRun(given.run_id(5), 4000, given.host),
            Progress(given.run_id(5), 3900),
            FinishRun(given.result(5), 3800),
            MergeResult(given.run_id(5), given.parent, 3700),
            MarkSwept(given.run_id(5), 3600),
        ):
            store.transaction(operation).result(10)
        found = facts(store, given, 5)
        assert (found.accepted_at, found.started_at, found.last_progress_at) == (5000, 5000, 5000)
        assert (found.ended_at, found.delivered_at, found.swept_at) == (5000, 5000, 5000)

    def test_a_run_that_never_started_cannot_be_written_as_completed(self, store: Store, given: Given) -> None:
        """It would be refused whenever it is loaded; so it is refused before it is there."""
        store.transaction(*given.accept(1)).result(10)
        with pytest.raises(StoreError, match="completed_without_a_start"):
            store.transaction(given.finish(1)).result(10)
        assert facts(store, given).status == "pending"
        assert store.transaction(given.finish(1, EndReason.FAILED)).result(10) == (True,)

    @pytest.mark.parametrize(
        ("damage", "words"),
        [
            ("ended_at = 1", "ended_at and end_reason must be set together"),
            ("delivered_at = 9999", "delivered without an end"),
            ("started_at = 1", "started_at 1 is before accepted_at 1000"),
            ("generation = 0", "generation 0 is below 1"),
            ("ended_at = 9999, end_reason = 'swept'", "a run cannot end by it"),
            ("ended_at = 9999, end_reason = 'killed'", "without a failure"),
        ],
    )
    def test_a_history_that_cannot_have_happened_is_not_believed(
        self, path: Path, given: Given, damage: str, words: str
    ) -> None:
        """Somebody edited the file: every way of loading the run says so, and names it."""
        with Store.open(path, wall_ms=lambda: 0) as store:
            store.transaction(given.opened(), *given.accept(1), given.start(1)).result(10)
            with sqlite3.connect(path) as other:
                other.execute(f"UPDATE runs SET {damage}")  # noqa: S608 - the damages above
            other.close()
            for load in (
                lambda: store.runs.get(given.run_id(1)),
                lambda: store.runs.find(),
                lambda: store.runs.children(given.parent),
            ):
                with pytest.raises(IllegalFactsError, match=words):
                    load()
