"""Who is let in: in which order it is asked, what a refusal says, and that it leaves nothing behind."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import sqlite3
from typing import TYPE_CHECKING, Any

import pykka
import pytest
from _stage import MAIN, LockAfter, a_host, durable, hang, running

from understudy.actors import SessionClosedError
from understudy.actors.admission import MOST_UNDELIVERED, Standing, admit
from understudy.actors.testing import CrashPoint, Probe
from understudy.actors.tree import Tally
from understudy.protocol import (
    Accepted,
    Budget,
    EndReason,
    Rejection,
    RuntimeConfig,
    Spawn,
    SpawnRejected,
    Usage,
)
from understudy.protocol.spawn import GraphNode

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from understudy.actors import Runtime, Session
    from understudy.actors.runners import AsyncFunctionContext
    from understudy.actors.testing import ManualClock
    from understudy.protocol import SpawnPacket

# -- the decision, by enumeration ---------------------------------------------------------------------------------

GRAPH = GraphNode(graph_id="g", node_id="n")
SPENT = Tally(Budget(tokens=10), Usage(input_tokens=10))
FREE = Tally(Budget(tokens=10), Usage(input_tokens=9))


def judged(*, graph: bool = False, config: dict[str, Any] | None = None, **standing: Any) -> str | Rejection:
    """The verdict on one spawn, where all is well but for what is given."""
    where: dict[str, Any] = {
        "depth": 0,
        "runner": "default",
        "runners": ("default", "other"),
        "tallies": (FREE,),
        "running": 0,
        "running_in_total": 0,
        "queued": 0,
        "undelivered": 0,
        **standing,
    }
    return admit(
        Spawn(task="x", graph=GRAPH if graph else None), Standing(config=RuntimeConfig(**config or {}), **where)
    )


# In the order in which they are asked.
OBSTACLES: dict[str, dict[str, Any]] = {
    "depth_exceeded": {"depth": 2},
    "not_allowed": {"runner": "stranger"},
    "budget_exceeded": {"tallies": (FREE, SPENT)},
    "undelivered_backlog": {"undelivered": MOST_UNDELIVERED},
    "children_exceeded": {"running": 5},
}


@pytest.mark.parametrize(
    "reasons", [c for n in range(1, 6) for c in itertools.combinations(OBSTACLES, n)], ids="+".join
)
def test_of_several_obstacles_the_first_in_order_is_named(reasons: tuple[str, ...]) -> None:
    """Depth, allow-list, budget, backlog, children: whatever else is wrong too."""
    standing = {key: value for reason in reasons for key, value in OBSTACLES[reason].items()}
    verdict = judged(**standing)
    assert isinstance(verdict, Rejection)
    assert verdict.reason == reasons[0]


@pytest.mark.parametrize(
    ("standing", "current", "limit", "advice"),
    [
        ({"depth": 2}, 2, 3, "this agent is a leaf, do the work here"),
        ({"runner": "stranger"}, "stranger", ("default", "other"), "use 'default' or 'other'"),
        (
            {"runner": "other", "config": {"allow_agents": ("default",)}},
            "other",
            ("default",),
            "use 'default'",
        ),
        ({"tallies": (SPENT,)}, 10, 10, "finish with what is there"),
        (
            {"tallies": (Tally(Budget(cost_usd=0.5), Usage(cost_usd=0.75)),)},
            0.75,
            0.5,
            "0.75 of 0.5 US dollars are used up",
        ),
        ({"undelivered": 51}, 51, 50, "replay them before spawning more"),
        ({"running": 5}, 5, 5, "wait for one of them, or do the work here"),
        (
            {"running": 1, "running_in_total": 7, "config": {"max_total_children": 7}},
            7,
            7,
            "7 children of this runtime run already",
        ),
        (
            {"running": 5, "queued": 2, "config": {"max_queued_per_agent": 2}},
            2,
            2,
            "wait for a child to finish, or do the work here",
        ),
    ],
)
def test_a_refusal_says_where_one_stands_and_what_to_do_next(
    standing: dict[str, Any], current: object, limit: object, advice: str
) -> None:
    """Structured for a program, one sentence for a model."""
    verdict = judged(**standing)
    assert isinstance(verdict, Rejection)
    assert (verdict.current, verdict.limit) == (current, limit)
    assert advice in verdict.message
    assert "\n" not in verdict.message


@pytest.mark.parametrize(("depth", "most"), [(depth, most) for most in range(1, 6) for depth in range(6)])
def test_a_spawn_is_admitted_iff_there_is_a_level_below(depth: int, most: int) -> None:
    """Top level is depth 0: with 3 there are parent, child and grandchild."""
    assert (judged(depth=depth, config={"max_spawn_depth": most}) == "start") is (depth + 1 < most)


@pytest.mark.parametrize("running", [0, 1, 2])
@pytest.mark.parametrize("in_total", [0, 3, 4])
@pytest.mark.parametrize("queued", [0, 1, 2])
@pytest.mark.parametrize("queue", [0, 2])
def test_room_is_a_free_slot_or_a_place_in_the_queue(running: int, in_total: int, queued: int, queue: int) -> None:
    """Nobody overtakes those who wait; a full queue is told from full slots."""
    if queued > queue:
        return  # cannot be
    config = {"max_children_per_agent": 2, "max_total_children": 4, "max_queued_per_agent": queue}
    verdict = judged(running=running, running_in_total=in_total, queued=queued, config=config)
    if running < 2 and in_total < 4 and queued == 0:
        assert verdict == "start"
    elif queued < queue:
        assert verdict == "queue"
    else:
        assert isinstance(verdict, Rejection)
        assert verdict.reason == ("queue_full" if queue else "children_exceeded")


@pytest.mark.parametrize("reason", OBSTACLES)
def test_a_node_of_a_graph_passes_the_children_limit_and_no_other(reason: str) -> None:
    """Its scheduler is the host's, its depth and cost are not."""
    verdict = judged(graph=True, **OBSTACLES[reason])
    assert verdict == "start" if reason == "children_exceeded" else isinstance(verdict, Rejection)


# -- a refused spawn leaves nothing -------------------------------------------------------------------------------


def traces(runtime: Runtime, session: Session) -> dict[str, object]:
    """Everything a spawn could leave behind."""
    backstage = runtime._backstage
    with sqlite3.connect(durable(runtime).path) as database:
        tables = [row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        rows = {table: database.execute(f'SELECT count(*) FROM "{table}"').fetchone()[0] for table in tables}  # noqa: S608
    database.close()
    roster = session._actor.roster
    return {
        "rows": rows,
        "files": sorted(str(path) for path in durable(runtime).path.parent.rglob("*") if path.is_dir()),
        "live": dict(backstage.live),
        "slots": (backstage.running, roster.running, len(roster.queue), len(roster.unsettled)),
        "actors": len(backstage.kernel._actors),
        "sessions": set(backstage.sessions),
    }


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "depth_exceeded": ({"max_spawn_depth": 1}, {}),
    "not_allowed": ({"allow_agents": ("answer",)}, {}),
    "budget_exceeded": ({"tree_token_budget": 5}, {}),
    "children_exceeded": ({"max_children_per_agent": 1}, {}),
    "queue_full": ({"max_children_per_agent": 1, "max_queued_per_agent": 1}, {}),
    "duplicate_conflict": ({}, {"idempotency_key": "key"}),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_a_refused_spawn_leaves_no_row_no_folder_and_no_actor(
    reason: str, manual_clock: ManualClock, tmp_path: Path
) -> None:
    """Whoever looks afterwards cannot tell that it was asked for."""
    config, fields = REFUSED[reason]

    async def spend(packet: SpawnPacket, context: AsyncFunctionContext) -> str:
        context.usage(input_tokens=5)
        return "spent"

    with a_host(manual_clock, hang, store=tmp_path / "s.db", config=config, runners={"spend": spend}) as runtime:
        session = runtime.session(MAIN, workspace=tmp_path)
        if reason == "budget_exceeded":
            session.spawn(Spawn(task="x", runner="spend")).result(timeout=30)
        if reason in {"children_exceeded", "queue_full"}:
            session.spawn(Spawn(task="first"))
        if reason == "queue_full":
            session.spawn(Spawn(task="second"))
        if reason == "duplicate_conflict":
            session.spawn(Spawn(task="first", **fields))
        manual_clock.run_until_idle()
        before = traces(runtime, session)
        with pytest.raises(SpawnRejected) as refusal:
            session.spawn(Spawn(task="one more", graph=None, **fields))
        manual_clock.run_until_idle()
        assert refusal.value.rejection.reason == reason
        assert traces(runtime, session) == before


def test_a_refusal_is_an_event_a_reply_and_an_exception(manual_clock: ManualClock) -> None:
    """Whoever asked hears of it by the road by which they asked; whoever watches hears too."""
    with a_host(manual_clock, config={"max_spawn_depth": 1}) as runtime:
        session, probe = runtime.session(MAIN), Probe(runtime)
        with runtime.events() as events:
            with pytest.raises(SpawnRejected, match="this agent is a leaf"):
                session.spawn(Spawn(task="x"))
            session.ref.tell(Spawn(task="x", reply_to=probe.ref))
            assert probe.expect(Rejection).reason == "depth_exceeded"
            seen = events.poll()
        assert [event.name for event in seen] == ["session:sub_agent_spawn_rejected"] * 2
        assert (seen[0].session_key, seen[0].run_id, seen[0].depth) == (MAIN, None, 1)
        assert seen[0].data["reason"] == "depth_exceeded"


def test_a_task_without_a_printable_word_is_still_a_spawn(manual_clock: ManualClock) -> None:
    """It gets a label of its own, and whoever asked gets an answer."""
    with a_host(manual_clock) as runtime:
        accepted: Any = runtime.session(MAIN).ref.ask(Spawn(task="\u200b"), timeout=30)
        result = runtime.run(accepted.run_id).result(timeout=30)
        assert result.end_reason is EndReason.COMPLETED
        assert result.label.strip()


# -- idempotency --------------------------------------------------------------------------------------------------


def same(task: str = "once", **fields: Any) -> Spawn:
    return Spawn(task=task, idempotency_key="key", **fields)


def conflict(session: Session) -> Rejection:
    with pytest.raises(SpawnRejected) as refusal:
        session.spawn(same("something else"))
    return refusal.value.rejection


def test_the_same_key_and_request_are_the_same_run_alive_finished_and_after_a_restart(
    manual_clock: ManualClock, tmp_path: Path
) -> None:
    """Another request under the key is refused at each of these times, naming the run."""
    gate = manual_clock.gate()
    calls = []

    async def wait(packet: SpawnPacket, context: AsyncFunctionContext) -> str:
        calls.append(packet.run_id)
        await gate
        return "done"

    with a_host(manual_clock, wait, store=tmp_path / "s.db") as runtime:
        session = runtime.session(MAIN)
        first = session.spawn(same())
        assert session.spawn(same()).run_id == first.run_id
        assert conflict(session).reason == "duplicate_conflict"
        gate.open()
        result = first.result(timeout=30)
        again = session.spawn(same())
        assert (again.run_id, again.result(timeout=30)) == (first.run_id, result)
        assert first.run_id in conflict(session).message
        answered = session.ref.ask(same(), timeout=30)
        assert answered == Accepted(run_id=first.run_id, session_key=first.session_key, duplicate=True)
    with a_host(manual_clock, wait, store=tmp_path / "s.db") as runtime:
        session = runtime.session(MAIN)
        again = session.spawn(same())
        assert (again.run_id, again.result(timeout=30)) == (first.run_id, result)
        assert (again.session_key, again.status) == (first.session_key, "completed")
        assert conflict(session).current == "key"
    assert calls == [first.run_id]


def test_a_key_is_of_one_session(manual_clock: ManualClock) -> None:
    """Another session's run is not to be had by guessing its key."""
    with a_host(manual_clock) as runtime:
        one = runtime.session("agent:one").spawn(same())
        other = runtime.session("agent:other").spawn(same("another task"))
        assert one.run_id != other.run_id


@pytest.mark.parametrize("point", ["accept.before", "accept.after"])
def test_one_that_asks_again_before_the_first_is_durable_waits_with_it(point: Any, manual_clock: ManualClock) -> None:
    """Both hear of the same run, once it is there; a different request hears at once that the key is taken."""
    strike = CrashPoint(point, "delay")
    with a_host(manual_clock, commit_hook=strike) as runtime:
        session = runtime.session(MAIN)
        asked = [session.ref.ask(same(), block=False)]
        assert strike.reached.wait(30)
        asked += [session.ref.ask(same(), block=False) for _ in range(3)]
        assert conflict(session).reason == "duplicate_conflict"
        strike.release()
        accepted = [future.get(timeout=30) for future in asked]
        assert len({answer.run_id for answer in accepted}) == 1
        manual_clock.run_until_idle()
        assert len(runtime.runs().items) == 1


def test_those_who_wait_for_a_first_that_fails_are_refused_with_it_and_the_key_is_free(
    manual_clock: ManualClock,
) -> None:
    """Nobody waits for a run that was never accepted."""
    release, strike = CrashPoint("accept.before", "delay"), CrashPoint("accept.before")

    def hook(point: Any, /) -> None:
        release(point)
        strike(point)

    with a_host(manual_clock, commit_hook=hook) as runtime:
        session = runtime.session(MAIN)
        asked = [session.ref.ask(same(), block=False)]
        assert release.reached.wait(30)
        asked.append(session.ref.ask(same(), block=False))
        manual = session.ref.ask(same("something else"), block=False)
        with pytest.raises(SpawnRejected):
            manual.get(timeout=30)
        release.release()
        for future in asked:
            with pytest.raises(SpawnRejected) as refusal:
                future.get(timeout=30)
            assert refusal.value.rejection.reason == "store_unavailable"
        assert session.spawn(same("something else")).result(timeout=30).end_reason is EndReason.COMPLETED


# -- durable before acknowledged ----------------------------------------------------------------------------------


class Prepared:
    """A host's hook that remembers what it prepared and what was undone."""

    def __init__(self) -> None:
        self.prepared: list[str] = []
        self.undone: list[str] = []

    def __call__(self, packet: SpawnPacket) -> Callable[[], None]:
        self.prepared.append(packet.task)
        return lambda: self.undone.append(packet.task)


def test_a_spawn_that_cannot_be_made_durable_is_refused_and_unwound(manual_clock: ManualClock) -> None:
    """The hook's rollback runs, the slot is free, and there is no trace of it."""
    hook = Prepared()
    strike = CrashPoint("accept.before")
    config = {"max_children_per_agent": 1}
    with a_host(manual_clock, config=config, commit_hook=strike, prepare_spawn=hook) as runtime:
        session = runtime.session(MAIN)
        before = traces(runtime, session)
        with pytest.raises(SpawnRejected) as refusal:
            session.spawn(Spawn(task="first"))
        manual_clock.run_until_idle()
        assert refusal.value.rejection.reason == "store_unavailable"
        assert "so it was not accepted" in refusal.value.rejection.message
        assert (hook.prepared, hook.undone) == (["first"], ["first"])
        assert traces(runtime, session) == before
        assert session.spawn(Spawn(task="second")).result(timeout=30).output == "done: second"
        assert hook.undone == ["first"]


def test_a_spawn_whose_commit_stands_is_accepted_whatever_was_heard_of_it(manual_clock: ManualClock) -> None:
    """What is in the store counts: it runs, and nothing is rolled back."""
    hook = Prepared()
    with a_host(manual_clock, commit_hook=CrashPoint("accept.after"), prepare_spawn=hook) as runtime:
        result = runtime.session(MAIN).spawn(Spawn(task="first")).result(timeout=30)
        assert (result.end_reason, hook.undone) == (EndReason.COMPLETED, [])
        assert running(runtime) == 0


def test_nothing_is_acknowledged_and_nothing_begins_before_the_commit(manual_clock: ManualClock) -> None:
    """While the commit is held up the caller waits, and so does the child."""
    strike = CrashPoint("accept.before", "delay")
    begun = []

    async def begin(packet: SpawnPacket, context: AsyncFunctionContext) -> str:
        begun.append(packet.task)
        return "done"

    with a_host(manual_clock, begin, commit_hook=strike) as runtime:
        asked = runtime.session(MAIN).ref.ask(Spawn(task="x"), block=False)
        assert strike.reached.wait(30)
        with pytest.raises(pykka.Timeout):
            asked.get(timeout=0)
        assert begun == []
        strike.release()
        run_id = asked.get(timeout=30).run_id
        assert runtime.run(run_id).result(timeout=30).output == "done"


def test_a_locked_store_refuses_a_spawn_and_takes_the_next(manual_clock: ManualClock, tmp_path: Path) -> None:
    """Another process holds the lock for longer than is waited for: the model is told, and nothing is left."""
    lock, hook = LockAfter("merge.after"), Prepared()
    lock.path = tmp_path / "s.db"
    with a_host(manual_clock, store=lock.path, busy_timeout_ms=1, prepare_spawn=hook) as runtime:
        session = runtime.session(MAIN)
        before = traces(runtime, session)
        lock.lock()
        with pytest.raises(SpawnRejected, match="locked by another process") as refusal:
            session.spawn(Spawn(task="first"))
        assert refusal.value.rejection.reason == "store_unavailable"
        lock.lift()
        manual_clock.run_until_idle()
        assert (hook.undone, traces(runtime, session)) == (["first"], before)
        assert session.spawn(Spawn(task="second")).result(timeout=30).output == "done: second"


def test_a_full_store_refuses_a_spawn_and_takes_the_next(manual_clock: ManualClock, tmp_path: Path) -> None:
    """SQLite's own limit of pages stands in for the disk's."""
    with a_host(manual_clock, store=tmp_path / "s.db") as runtime:
        session = runtime.session(MAIN)
        before = traces(runtime, session)
        group = durable(runtime)._writer._group
        pages = group.connection.execute("PRAGMA page_count").fetchone()[0]
        group.connection.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(SpawnRejected, match="the disk is full") as refusal:
            session.spawn(Spawn(task="x" * 100_000))
        assert refusal.value.rejection.reason == "store_unavailable"
        group.connection.execute("PRAGMA max_page_count = 1073741823")
        manual_clock.run_until_idle()
        assert traces(runtime, session) == before
        assert session.spawn(Spawn(task="second")).result(timeout=30).output == "done: second"


def test_a_closed_session_says_so(manual_clock: ManualClock) -> None:
    """One sentence with what to do, not an error about actors."""
    with a_host(manual_clock) as runtime:
        session = runtime.session(MAIN)
        session.close()
        with pytest.raises(SessionClosedError, match="open it again to spawn"):
            session.spawn(Spawn(task="x"))
        assert runtime.session(MAIN).spawn(Spawn(task="x")).result(timeout=30).output == "done: x"


# -- hooks --------------------------------------------------------------------------------------------------------

BEYOND = [ValueError("x"), SystemExit(1), KeyboardInterrupt(), asyncio.CancelledError()]


def raising(error: BaseException, *, is_async: bool) -> Callable[[object], Any]:
    async def raise_later(_: object) -> None:
        await asyncio.sleep(0)
        raise error

    def raise_now(_: object) -> None:
        raise error

    return raise_later if is_async else raise_now


@pytest.mark.parametrize("error", BEYOND, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("which", ["prepare_spawn", "on_ended"])
def test_a_hook_that_raises_is_logged_and_skipped(
    which: str, is_async: bool, error: BaseException, manual_clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever it raises: the run, and the next one, go their way."""
    options: dict[str, Any] = {which: raising(error, is_async=is_async)}
    with a_host(manual_clock, **options) as runtime:
        session = runtime.session(MAIN)
        for task in ("one", "two"):
            asked: Any = session.ref.ask(Spawn(task=task), timeout=30)
            assert runtime.run(asked.run_id).result(timeout=30).output == f"done: {task}"
            manual_clock.run_until_idle()
    assert "failed and was skipped" in caplog.text


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("which", ["prepare_spawn", "on_ended"])
def test_a_slow_hook_is_left_behind_after_five_seconds(
    which: str, is_async: bool, manual_clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A spawn waits for it that long and no longer; a result does not wait for it at all."""
    gate = manual_clock.gate()

    async def slow(_: object) -> None:
        await gate

    def blocking(_: object) -> None:
        gate.wait()

    options: dict[str, Any] = {which: slow if is_async else blocking}
    with a_host(manual_clock, **options) as runtime:
        asked = runtime.session(MAIN).ref.ask(Spawn(task="x"), block=False)
        gate.reached.get(timeout=30)
        if which == "prepare_spawn":
            manual_clock.advance(4.9)
            with pytest.raises(pykka.Timeout):
                asked.get(timeout=0)
        else:
            assert runtime.run(asked.get(timeout=30).run_id).result(timeout=30).output == "done: x"
        manual_clock.advance(5)
        assert runtime.run(asked.get(timeout=30).run_id).result(timeout=30).output == "done: x"
        assert "was left behind" in caplog.text
        gate.open()


def test_a_rollback_that_fails_or_hangs_does_not_keep_the_refusal_back(manual_clock: ManualClock) -> None:
    """The caller is refused all the same, and the next spawn is welcome."""

    def prepare(packet: SpawnPacket) -> Callable[[], None]:
        def rollback() -> None:
            raise OSError("no such folder")

        return rollback

    with a_host(manual_clock, commit_hook=CrashPoint("accept.before"), prepare_spawn=prepare) as runtime:
        session = runtime.session(MAIN)
        with pytest.raises(SpawnRejected):
            session.spawn(Spawn(task="first"))
        assert session.spawn(Spawn(task="second")).result(timeout=30).output == "done: second"


def test_an_async_hook_may_give_an_async_rollback(manual_clock: ManualClock) -> None:
    """Both are awaited."""
    undone = []

    async def prepare(packet: SpawnPacket) -> Callable[[], Any]:
        async def rollback() -> None:
            undone.append(packet.task)

        return rollback

    with a_host(manual_clock, commit_hook=CrashPoint("accept.before"), prepare_spawn=prepare) as runtime:
        with pytest.raises(SpawnRejected):
            runtime.session(MAIN).spawn(Spawn(task="first"))
        assert undone == ["first"]


# -- what a child is given ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parents", "asked", "given"),
    [
        (None, None, None),
        (None, ("web",), ("web",)),
        (("files", "web"), None, ("files", "web")),
        (("files", "web"), ("web", "shell"), ("web",)),
        (("files",), ("shell",), ()),
        (("mcp", "web"), ("mcp:docs",), ("mcp:docs",)),
        (("mcp:docs", "web"), ("mcp",), ("mcp:docs",)),
        (("mcp:docs",), ("mcp:web", "mcpx"), ()),
        ((), ("shell",), ()),
        ((), None, ()),
    ],
)
def test_tool_groups_only_narrow(
    parents: tuple[str, ...] | None, asked: tuple[str, ...] | None, given: object, manual_clock: ManualClock
) -> None:
    """A grandchild has what its parent has, or less, whatever it asks for."""
    seen = []

    async def parent(packet: SpawnPacket, context: AsyncFunctionContext) -> str:
        return (await (await context.spawn(Spawn(task="y", runner="child", tool_groups=asked))).result()).output

    async def child(packet: SpawnPacket, context: AsyncFunctionContext) -> str:
        seen.append(packet.tool_groups)
        return "done"

    with a_host(manual_clock, parent, runners={"child": child}) as runtime:
        runtime.session(MAIN).spawn(Spawn(task="x", tool_groups=parents)).result(timeout=30)
    assert seen == [given]


@pytest.mark.parametrize(
    ("cwd", "allowed"),
    [("sub", True), (".", True), ("..", False), ("/", False), ("sub/../..", False), ("link", False), ("sub2", True)],
)
def test_the_cwd_of_a_nested_spawn_stays_below_its_parents(
    cwd: str, allowed: bool, manual_clock: ManualClock, tmp_path: Path
) -> None:
    """Links and dots are resolved first; a folder need not exist yet."""
    work = tmp_path / "work"
    (work / "sub").mkdir(parents=True)
    (work / "link").symlink_to(tmp_path)
    seen = []

    async def parent(packet: SpawnPacket, context: AsyncFunctionContext) -> str:
        try:
            handle = await context.spawn(Spawn(task="y", runner="child", cwd=cwd))
        except SpawnRejected as refusal:
            return f"{refusal.rejection.reason}: {refusal}"
        return (await handle.result()).output

    async def child(packet: SpawnPacket, context: AsyncFunctionContext) -> str:
        seen.append(packet.cwd)
        return "done"

    with a_host(manual_clock, parent, runners={"child": child}) as runtime:
        result = runtime.session(MAIN, workspace=work).spawn(Spawn(task="x")).result(timeout=30)
    if allowed:
        assert seen == [os.path.realpath(work / cwd)]
    else:
        assert seen == []
        assert result.output.startswith("not_allowed: ")
        assert "choose a folder below" in result.output


def test_nothing_is_written_into_cwd(manual_clock: ManualClock, tmp_path: Path) -> None:
    """Not by a whole life: queue, graph, transcript, result file, retention."""
    cwd = tmp_path / "project"
    cwd.mkdir()
    store = tmp_path / "state" / "s.db"
    store.parent.mkdir()
    config = {"max_children_per_agent": 1, "max_queued_per_agent": 1, "result_retention_ms": 10_000}
    with a_host(manual_clock, store=store, config=config) as runtime:
        session = runtime.session(MAIN, workspace=tmp_path / "state", cwd=cwd)
        handles = [session.spawn(Spawn(task="x", graph=graph)) for graph in (None, GRAPH)]
        for handle in handles:
            handle.result(timeout=30)
        manual_clock.advance(100)
    assert list(cwd.iterdir()) == []


# -- secrets ------------------------------------------------------------------------------------------------------

SECRET = "hunter2-and-more"  # noqa: S105 - made up


def test_values_of_env_are_shown_nowhere(
    manual_clock: ManualClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Not in a repr, an error, a log, a dead letter; the child itself has them."""
    caplog.set_level(logging.DEBUG)
    seen = []

    async def child(packet: SpawnPacket, context: AsyncFunctionContext) -> str:
        seen.append((dict(packet.env), repr(packet)))
        raise RuntimeError("crashed")

    spawn = Spawn(task="x", env={"HARMLESS": SECRET})
    assert SECRET not in repr(spawn)
    assert SECRET not in str(spawn)
    with a_host(manual_clock, child) as runtime:
        session = runtime.session(MAIN)
        handle = session.spawn(spawn)
        result = handle.result(timeout=30)
        session.ref.tell({"type": "spawn", "task": "x", "env": {"HARMLESS": SECRET}, "oops": 1})
        session.ref.tell({"type": "spawn", "env": {"not a name": SECRET}})
        ref = session.ref
        session.close()
        for message in (spawn, {"type": "spawn", "task": "x", "env": {"HARMLESS": SECRET}}):
            with pytest.raises(Exception, match="not found"):
                ref.tell(message)
        manual_clock.run_until_idle()
        letters = runtime.dead_letters()
        assert len(letters) == 2
    assert seen[0][0] == {"HARMLESS": SECRET}
    shown = [seen[0][1], repr(handle), result.model_dump_json(), repr(letters), caplog.text, repr(session)]
    assert [text for text in shown if SECRET in text] == []


def test_secret_values_of_env_are_not_stored(manual_clock: ManualClock, tmp_path: Path) -> None:
    """Neither those whose name says so, nor those the host has named: not in any file beside the store."""
    store = tmp_path / "s.db"
    env = {"API_TOKEN": SECRET, "INNOCENT": "the-hosts-own-secret"}
    with a_host(manual_clock, store=store, secrets=["the-hosts-own-secret"]) as runtime:
        runtime.session(MAIN, workspace=tmp_path).spawn(Spawn(task="x", env=env)).result(timeout=30)
        manual_clock.advance(10)
        written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"API_TOKEN" in written
    assert SECRET.encode() not in written
    assert b"the-hosts-own-secret" not in written
