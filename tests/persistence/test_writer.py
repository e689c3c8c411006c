"""The one writer: what gathers is committed together, and each caller hears of its own work."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from typing import TYPE_CHECKING, Literal

import pytest

from understudy.actors.testing import CrashPoint, ManualClock
from understudy.persistence import DuplicateRunError, Store, StoreClosedError, StoreError, StoreUnavailableError
from understudy.persistence.operations import AppendTurns, CompleteSession, HostStarted, OpenSession
from understudy.protocol import SessionKey
from understudy.protocol.model import Turn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from conftest import Doorstop, Given

    from understudy.persistence import Commit
    from understudy.protocol.commit_points import CommitPoint


class Statements:
    """What the writer's connection is told, in order."""

    def __init__(self, store: Store, then: Callable[[str], None] = lambda _: None) -> None:
        self.seen: list[str] = []

        def trace(statement: str) -> None:
            self.seen.append(statement)
            then(statement)

        store._writer._group.connection.set_trace_callback(trace)

    def count(self, statement: str) -> int:
        return self.seen.count(statement)


@pytest.fixture
def held(path: Path, doorstop: Doorstop) -> Iterator[Store]:
    """A store whose writer stands still until the doorstop is released: what is queued becomes one group."""
    with Store.open(path, wall_ms=lambda: 0, commit_hook=doorstop, busy_timeout_ms=1) as opened:
        doorstop.hold(opened)
        yield opened
        doorstop.release()


def turn(given: Given, text: str) -> AppendTurns:
    return AppendTurns(given.parent, 5, (Turn("user", text),))


def texts(store: Store, given: Given) -> list[str]:
    return [row.turn.text for row in store.transcripts.turns(given.parent)]


class TestGroups:
    def test_many_producers_share_one_commit(self, held: Store, given: Given, doorstop: Doorstop) -> None:
        """Thirty-two threads queue and block; one COMMIT wakes them all."""
        statements, queued = Statements(held), threading.Barrier(33)
        answers = []

        def produce(number: int) -> None:
            commit = held.transaction(
                OpenSession(given.child(number), at=1), CompleteSession(given.child(number), at=2)
            )
            queued.wait(10)
            answers.append(commit.result(10))

        producers = [threading.Thread(target=produce, args=(number,)) for number in range(32)]
        for producer in producers:
            producer.start()
        queued.wait(10)
        doorstop.release()
        for producer in producers:
            producer.join()
        assert answers == [(None, True)] * 32
        assert statements.count("COMMIT") == 1

    def test_what_is_queued_in_one_order_is_written_in_that_order(
        self, held: Store, given: Given, doorstop: Doorstop
    ) -> None:
        """Also where the turns of one session come from many transactions, singly and by the dozen."""
        said = [[f"{number}.{part}" for part in range(number % 3)] for number in range(100)]
        for some in said:
            held.transaction(AppendTurns(given.parent, 5, tuple(Turn("user", text) for text in some)))
        doorstop.release()
        held.transaction().result(10)
        assert texts(held, given) == [text for some in said for text in some]

    def test_a_very_long_queue_is_cut(self, held: Store, given: Given, doorstop: Doorstop) -> None:
        """So that the first callers need not wait for the last."""
        statements = Statements(held)
        last = [held.transaction(turn(given, str(number))) for number in range(1500)][-1]
        doorstop.release()
        last.result(10)
        assert statements.count("COMMIT") == 2
        assert texts(held, given) == [str(number) for number in range(1500)]

    def test_nobody_waits_for_a_group_to_fill(self, store: Store, given: Given) -> None:
        """A single transaction is committed at once: there is no timer."""
        statements = Statements(store)
        for number in range(3):
            store.transaction(turn(given, str(number))).result(10)
        assert statements.count("COMMIT") == 3

    @pytest.mark.parametrize(("option", "level"), [("full", 2), ("normal", 1)])
    def test_a_commit_is_on_the_disk_unless_the_host_chose_otherwise(
        self, path: Path, option: Literal["full", "normal"], level: int
    ) -> None:
        """WAL, and fsync at each commit; with "normal" only at checkpoints."""
        with Store.open(path, wall_ms=lambda: 0, synchronous=option) as store:
            connection = store._writer._group.connection
            assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
            assert connection.execute("PRAGMA synchronous").fetchone() == (level,)
        with Store.open(path, wall_ms=lambda: 0) as store:
            assert store._writer._group.connection.execute("PRAGMA synchronous").fetchone() == (2,)


class TestFailures:
    def test_a_failing_transaction_takes_no_neighbour_down(self, held: Store, given: Given, doorstop: Doorstop) -> None:
        """Refused by us, refused by SQLite, or no database error at all: the others are committed."""
        held.transaction(*given.accept(1, idempotency_key="key", digest="d"))
        group = [
            held.transaction(*given.accept(2)),
            held.transaction(*given.accept(3, idempotency_key="key", digest="e")),
            held.transaction(turn(given, "between")),
            held.transaction(given.finish(99)),
            held.transaction(AppendTurns(given.parent, 5, (Turn("user", object()),))),  # type: ignore[arg-type]
            held.transaction(*given.accept(4)),
        ]
        doorstop.release()
        heard = [commit_error(commit) for commit in group]
        assert [type(error) for error in heard] == [
            *(type(None), DuplicateRunError, type(None), StoreError, AttributeError, type(None)),
        ]
        assert [held.runs.get(given.run_id(number)) is not None for number in (2, 3, 4)] == [True, False, True]
        assert held.sessions.get(given.child(3)) is None
        assert texts(held, given) == ["between"]

    def test_a_failing_transaction_is_found_by_halves(self, held: Store, given: Given, doorstop: Doorstop) -> None:
        """One bad apple among sixty-four costs a few commits, not sixty-three."""
        statements = Statements(held)
        group = [
            held.transaction(given.finish(99) if number == 20 else turn(given, str(number))) for number in range(64)
        ]
        doorstop.release()
        assert [number for number, commit in enumerate(group) if commit_error(commit)] == [20]
        assert texts(held, given) == [str(number) for number in range(64) if number != 20]
        assert statements.count("COMMIT") == 6

    def test_a_lock_is_waited_for_once(self, held: Store, given: Given, doorstop: Doorstop, path: Path) -> None:
        """Though a group is being tried in parts: a timeout for each of a thousand would stall the host."""
        other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)

        def lock(statement: str) -> None:
            # Told before the statement takes effect: the second attempt finds the file locked.
            if statement == "BEGIN IMMEDIATE" and statements.count(statement) == 2:
                other.execute("BEGIN IMMEDIATE")

        statements = Statements(held, lock)
        group = [held.transaction(given.finish(99))]
        group += [held.transaction(turn(given, str(number))) for number in range(20)]
        doorstop.release()
        heard = [commit_error(commit) for commit in group]
        other.close()
        assert {type(error) for error in heard} == {StoreUnavailableError}
        assert statements.count("BEGIN IMMEDIATE") == 2
        held.transaction(turn(given, "later")).result(10)
        assert texts(held, given) == ["later"]

    def test_even_an_exit_raised_in_a_hook_does_not_end_the_writer(self, path: Path, given: Given) -> None:
        """It is handed to the caller as it is."""

        def leave(point: str) -> None:
            if point == "terminal.before":
                raise SystemExit(3)

        with Store.open(path, wall_ms=lambda: 0, commit_hook=leave) as store:
            store.transaction(given.opened(), *given.accept(1), given.start(1)).result(10)
            with pytest.raises(SystemExit):
                store.transaction(given.finish(1), point="terminal").result(10)
            assert store.transaction(given.finish(1)).result(10) == (True,)

    def test_a_hook_is_called_once_however_often_the_work_is_tried(
        self, held: Store, given: Given, doorstop: Doorstop
    ) -> None:
        """One that is struck has the group written again without it; the others pass their points once each."""
        seen: list[str] = []
        strike = CrashPoint("accept.before", hit=2)

        def watch(point: CommitPoint) -> None:
            seen.append(point)
            strike(point)

        doorstop.then = watch
        group = [held.transaction(*given.accept(number), point="accept") for number in (1, 2, 3)]
        doorstop.release()
        assert [commit_error(commit) is None for commit in group] == [True, False, True]
        assert seen == ["accept.before"] * 3 + ["accept.after"] * 2


class TestWaiting:
    def test_a_loop_awaits_and_a_thread_blocks(self, store: Store, given: Given) -> None:
        """The answers come in the order of the operations, by either way and as often as one asks."""

        async def on_a_loop() -> Sequence[tuple[object, ...]]:
            commits = [store.transaction(*given.accept(number), given.start(number)) for number in range(1, 6)]
            return [await commit for commit in commits] + [await commits[0]]

        assert asyncio.run(on_a_loop()) == [(None, None, True)] * 6
        commit = store.transaction(given.start(1))
        assert (commit.result(10), commit.result(), commit.done) == ((False,), (False,), True)

    def test_several_may_wait_for_one_commit(self, held: Store, given: Given, doorstop: Doorstop) -> None:
        """From two loops and a thread: all are woken."""
        commit, answers = held.transaction(turn(given, "a")), []
        ready = threading.Barrier(4)

        async def wait() -> None:
            waiting = asyncio.gather(*(asyncio.ensure_future(_result(commit)) for _ in range(3)))
            await asyncio.sleep(0)
            ready.wait(10)
            answers.extend(await waiting)

        def block() -> None:
            ready.wait(10)
            answers.append(commit.result(10))

        threads = [threading.Thread(target=lambda: asyncio.run(wait())) for _ in range(2)]
        threads.append(threading.Thread(target=block))
        for thread in threads:
            thread.start()
        ready.wait(10)
        doorstop.release()
        for thread in threads:
            thread.join()
        assert answers == [(None,)] * 7

    def test_giving_up_the_wait_does_not_take_the_work_back(
        self, held: Store, given: Given, doorstop: Doorstop
    ) -> None:
        """Neither by a timeout nor by a cancelled task; nor does a loop that is gone trouble anybody."""
        first = held.transaction(turn(given, "a"))
        with pytest.raises(TimeoutError, match="still queued"):
            first.result(0)

        async def give_up() -> None:
            waiting = asyncio.ensure_future(_result(held.transaction(turn(given, "b"))))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait([waiting])

        asyncio.run(give_up())
        abandoned = asyncio.new_event_loop()
        task = _result(held.transaction(turn(given, "c"))).__await__()
        abandoned.call_soon(lambda: next(task))
        abandoned.call_soon(abandoned.stop)
        abandoned.run_forever()
        abandoned.close()
        doorstop.release()
        held.transaction().result(10)
        task.close()
        assert texts(held, given) == ["a", "b", "c"]

    def test_a_read_never_stands_behind_the_writer(self, path: Path, given: Given) -> None:
        """While a commit is held up, reads see everything up to the last one."""
        strike = CrashPoint("accept.before", "delay")
        with Store.open(path, wall_ms=lambda: 0, commit_hook=strike) as store:
            store.transaction(given.opened(), turn(given, "a")).result(10)
            commit = store.transaction(*given.accept(1), turn(given, "b"), point="accept")
            assert strike.reached.wait(10)
            assert (store.runs.get(given.run_id(1)), texts(store, given), store.problems()) == (None, ["a"], [])
            assert not commit.done
            strike.release()
            commit.result(10)
            assert (store.runs.get(given.run_id(1)) is not None, texts(store, given)) == (True, ["a", "b"])


class TestClosing:
    def test_closing_commits_what_is_queued_and_refuses_what_comes_later(
        self, held: Store, given: Given, doorstop: Doorstop, path: Path
    ) -> None:
        """A second close is harmless; whoever comes too late is told what to do."""
        queued = [held.transaction(turn(given, str(number))) for number in range(10)]
        closing = threading.Thread(target=held.close)
        closing.start()
        doorstop.release()
        closing.join()
        assert all(commit.done for commit in queued)
        with pytest.raises(StoreClosedError, match="the store is closed: open it again"):
            held.transaction(turn(given, "late"))
        with pytest.raises(StoreClosedError, match="the store is closed: open it again"):
            held.sessions.get(given.parent)
        held.close()
        with Store.open(path, wall_ms=lambda: 0) as again:
            assert texts(again, given) == [str(number) for number in range(10)]

    def test_a_relative_path_stays_the_same_file(
        self, tmp_path: Path, given: Given, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Connections are opened when they are needed: a host that has changed its folder means the same file."""
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path)
        with Store.open("store.db", wall_ms=lambda: 0) as store:
            store.transaction(given.opened()).result(10)
            monkeypatch.chdir("elsewhere")
            assert store.sessions.get(given.parent) is not None
            assert store.path == tmp_path / "store.db"

    def test_a_private_store_leaves_nothing_behind(self, given: Given) -> None:
        """Without a path the file lives in a folder of its own, only its owner's, and goes with the store."""
        with Store.open(None, wall_ms=lambda: 0) as store:
            store.transaction(given.opened()).result(10)
            folder = store.path.parent
            assert store.path.stat().st_mode & 0o777 == 0o600
            assert folder.stat().st_mode & 0o777 == 0o700
        assert not folder.exists()


class Books:
    """Counts what is under way, and the most that ever was."""

    def __init__(self) -> None:
        self.under_way = 0
        self.most = 0
        self._lock = threading.Lock()

    def work_started(self) -> None:
        with self._lock:
            self.under_way += 1
            self.most = max(self.most, self.under_way)

    def work_finished(self) -> None:
        with self._lock:
            assert self.under_way > 0
            self.under_way -= 1


class Broken(Books):
    """A clock that fails when it is told of the end."""

    def work_finished(self) -> None:
        raise RuntimeError("the clock is gone")


class TestBusySignal:
    def test_a_writer_that_dies_leaves_nobody_waiting(
        self, path: Path, given: Given, doorstop: Doorstop, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whoever is queued and whoever comes later is told; the commit that was made stands."""
        died: list[str] = []
        monkeypatch.setattr(threading, "excepthook", lambda args: died.append(str(args.exc_value)))
        with Store.open(path, wall_ms=lambda: 0, commit_hook=doorstop, busy=Broken()) as store:
            doorstop.hold(store)
            queued = store.transaction(*given.accept(1))
            doorstop.release()
            with pytest.raises(StoreClosedError, match="the writer has ended"):
                queued.result(10)
            with pytest.raises(StoreClosedError):
                store.transaction(*given.accept(2))
            assert store.sessions.get(given.parent) is not None
        assert died == ["the clock is gone"]

    def test_every_start_has_its_finish(self, path: Path, given: Given, doorstop: Doorstop) -> None:
        """Of work that was committed, refused, struck by a hook, and of work refused at the door."""
        books = Books()
        with Store.open(path, wall_ms=lambda: 0, commit_hook=doorstop, busy=books) as store:
            doorstop.hold(store)
            for number in range(1, 4):
                store.transaction(*given.accept(number), point="accept")
            store.transaction(given.finish(99))
            assert books.under_way == 5
            doorstop.then = CrashPoint("accept.before", hit=2)
            doorstop.release()
        assert (books.under_way, books.most) == (0, 5)
        with pytest.raises(StoreClosedError):
            store.transaction(given.opened())
        assert books.under_way == 0

    def test_a_manual_clock_waits_for_the_commit(self, path: Path, given: Given, manual_clock: ManualClock) -> None:
        """A clock is a busy signal as it is: time does not pass while a transaction is under way."""
        with Store.open(path, wall_ms=manual_clock.wall_ms, busy=manual_clock) as store:
            commit = store.transaction(given.opened())
            manual_clock.advance(1)
            assert commit.done


class TestInline:
    @pytest.fixture
    def inline(self) -> Iterator[Store]:
        with Store.open(":memory:", wall_ms=lambda: 0, inline=True) as opened:
            opened.transaction(OpenSession(SessionKey("agent:atlas:main"), at=1))
            yield opened
            assert opened.problems() == []

    def test_memory_has_no_second_connection(self) -> None:
        """So it is refused where readers of their own would find nothing."""
        with pytest.raises(ValueError, match="inline=True"):
            Store.open(":memory:", wall_ms=lambda: 0)

    def test_without_a_loop_a_transaction_is_committed_when_it_returns(self, inline: Store, given: Given) -> None:
        """Nothing happens behind anybody's back: the same lifecycle, without a thread."""
        before = threading.active_count()
        commits = [inline.transaction(*given.until("merge", 1), point="terminal"), inline.transaction(given.merge(1))]
        assert [commit.done for commit in commits] == [True, True]
        assert [commit.result() for commit in commits] == [(None, None, True, True), (True,)]
        assert threading.active_count() == before

    def test_what_one_tick_hands_in_is_committed_at_its_end(self, inline: Store, given: Given) -> None:
        """Three transactions, one COMMIT, and everybody awaiting is woken."""
        statements = Statements(inline)

        async def tick() -> list[bool]:
            commits = [inline.transaction(turn(given, text)) for text in "abc"]
            early = [commit.done for commit in commits]
            for commit in commits:
                await commit
            return early

        assert asyncio.run(tick()) == [False, False, False]
        assert statements.count("COMMIT") == 1
        assert texts(inline, given) == ["a", "b", "c"]

    def test_a_read_or_a_result_brings_the_commit_forward(self, inline: Store, given: Given) -> None:
        """So nobody can tell the difference."""

        async def tick() -> list[object]:
            first = inline.transaction(turn(given, "a"))
            read = texts(inline, given)
            second = inline.transaction(turn(given, "b"))
            return [first.done, read, second.done, second.result(), texts(inline, given)]

        assert asyncio.run(tick()) == [True, ["a"], False, (None,), ["a", "b"]]

    def test_a_loop_that_ends_early_leaves_nothing_hanging(self, inline: Store, given: Given) -> None:
        """Its tick never ended; the next loop's tick commits for both."""
        gone = asyncio.new_event_loop()
        gone.call_soon(lambda: inline.transaction(turn(given, "a")))
        gone.call_soon(gone.stop)
        gone.run_forever()
        gone.close()

        async def tick() -> bool:
            commit = inline.transaction(turn(given, "b"))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            return commit.done

        assert asyncio.run(tick())
        assert texts(inline, given) == ["a", "b"]

    def test_a_failing_transaction_takes_no_neighbour_down(self, inline: Store, given: Given) -> None:
        """As with the thread."""

        async def tick() -> list[BaseException | None]:
            commits = [inline.transaction(op) for op in (turn(given, "a"), given.finish(99), turn(given, "b"))]
            return [commit_error(commit) for commit in commits]

        assert [type(error) for error in asyncio.run(tick())] == [type(None), StoreError, type(None)]
        assert texts(inline, given) == ["a", "b"]

    def test_threads_take_turns(self, inline: Store, given: Given) -> None:
        """One connection, four threads that write and read: nothing is lost, nobody sees half a commit."""

        def work(name: str) -> None:
            for number in range(25):
                inline.transaction(HostStarted(f"{name}-{number}", 1, 1, 1), turn(given, f"{name}-{number}"))
                assert f"{name}-{number}" in texts(inline, given)

        threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (len(inline.hosts.running()), len(texts(inline, given))) == (100, 100)

    def test_closing_commits_the_unfinished_tick(self, path: Path, given: Given) -> None:
        """Also on a file, which another process may open afterwards."""

        async def tick() -> Commit:
            with Store.open(path, wall_ms=lambda: 0, inline=True) as store:
                commit = store.transaction(given.opened(), turn(given, "a"))
            with pytest.raises(StoreClosedError):
                store.transaction(given.opened())
            with pytest.raises(StoreClosedError):
                store.runs.unfinished()
            return commit

        assert asyncio.run(tick()).done
        with Store.open(path, wall_ms=lambda: 0) as again:
            assert texts(again, given) == ["a"]


async def _result(commit: Commit) -> tuple[object, ...]:
    return await commit


def commit_error(commit: Commit) -> BaseException | None:
    """What its caller hears, if it is bad news."""
    try:
        commit.result(10)
    except Exception as error:  # noqa: BLE001 - the tests look at it
        return error
    return None
