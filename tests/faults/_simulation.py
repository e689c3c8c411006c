"""One seed, one history: hosts that live and die, children of every kind, a disk that fails, in an order of its own."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import tempfile
import warnings
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

from _children import RUNNERS, runners, some_spawn
from _disk import Desk, Disk, DiskError
from _seeded import InlinePool, SeededClock, SeededLoop, Trace
from _verdict import Verdict, judge, living
from pykka import ActorDeadError, ActorRegistry

from understudy.actors import AsyncRuntime, NotSentError, SessionBusy, SessionClosedError, SteerError, UnknownRunError
from understudy.actors import _core as core
from understudy.actors.handles import AsyncRunHandle
from understudy.actors.host import _place
from understudy.actors.models import retry
from understudy.persistence import StoreError
from understudy.protocol import RuntimeConfig, SpawnRejected

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

    from understudy.actors import AsyncSession
    from understudy.actors.announcing import Results
    from understudy.protocol import RunId, SessionKey, Spawn

KEYS = {"agent:atlas:main": "player", "agent:atlas:mind": "mind"}
"""The host's sessions, and who thinks in them: nobody in the first, a model in the second."""
MOST_RUNS = 14
"""So many spawns in one history; more of them show nothing new and take longer."""
_A_LONG_TIME = 3_600.0
_ANSWERS = (
    SpawnRejected,
    SessionClosedError,
    UnknownRunError,
    NotSentError,
    SteerError,
    SessionBusy,
    TimeoutError,
    StoreError,
)
"""What a host that asks at any time must be ready for."""


class Outcome(NamedTuple):
    """What one seed came to."""

    seed: int
    digest: str
    runs: int
    crashes: int
    strikes: int
    verdict: Verdict
    trace: list[str]


class Host(AsyncRuntime):
    """A runtime of the simulation: its store, its pool and its name are given."""

    def __init__(self, desk: Desk, pool: InlinePool, **options: Any) -> None:
        super().__init__(**options)
        self._open_store = lambda: desk
        self._inline = pool

    async def begin(self) -> None:
        """As ever, but without threads."""
        self._kernel.pool = self._inline  # type: ignore[assignment]  # it does what is asked of a pool
        await super().begin()


@dataclass
class Life:
    """One host, from its start to its end."""

    loop: SeededLoop
    desk: Desk
    host: Host
    asked: list[asyncio.Task[None]] = field(default_factory=list)
    """What its own host's code waits for."""


class Simulation:
    """One history."""

    def __init__(self, seed: int, *, keep: bool = False) -> None:
        self.seed = seed
        self.chance = chance = Random(seed)
        self.trace = Trace(keep=keep)
        self.disk = Disk(chance.choice(["memory", "sqlite"]), chance, self.trace)
        self.clock = SeededClock()
        self.shuffled = chance.random() < 0.5
        self.config = RuntimeConfig(
            max_children_per_agent=chance.choice([1, 2, 3]),
            max_queued_per_agent=chance.choice([0, 2, 5]),
            max_total_children=chance.choice([None, None, 3]),
            queue_timeout_ms=chance.choice([5_000, 60_000]),
            max_run_timeout_ms=chance.choice([10_000, 60_000]),
            per_step_timeout_ms=10_000,
            max_steps=6,
            max_spawn_depth=chance.choice([3, 3, 4]),
            recent_files_max=chance.choice([2, 4]),
            max_result_tokens=100,
            tree_token_budget=chance.choice([None, None, 600]),
            delivery_max_attempts=chance.choice([2, 5]),
            ghost_grace_ms=20_000,
            announce_debounce_ms=chance.choice([0, 2_000]),
            max_restarts=chance.choice([0, 2]),
            context_window_tokens=chance.choice([2_000, 128_000]),
        )
        self.calm = False
        self.staying = 0
        self.verdict = Verdict()
        self.accepted: set[RunId] = set()
        self.told: dict[RunId, tuple[object, ...]] = {}
        self.announced: Counter[RunId] = Counter()
        self.kept: list[SessionKey] = []
        self.spawns: list[Spawn] = []
        self.crashes = 0
        self.breaths: list[tuple[str, asyncio.Future[None]]] = []
        self._labels = 0
        self._lives = 0
        self._dead: list[Life] = []
        self.life: Life

    # -- what children see of it ------------------------------------------------------------------------

    def breath(self, who: str) -> asyncio.Future[None]:
        future: asyncio.Future[None] = self.life.loop.create_future()
        self.breaths.append((who, future))
        return future

    def forever(self) -> asyncio.Future[None]:
        return self.life.loop.create_future()

    def next_label(self) -> str:
        self._labels += 1
        return f"n{self._labels}"

    # -- its course -------------------------------------------------------------------------------------

    def play(self) -> Outcome:
        """From the first host's start to the last one's end; then it is judged."""
        more = self.chance.choices([0, 1, 2], [5, 4, 2])[0]
        for _ in range(more):
            self._begin()
            self._let_live(self.chance.randrange(20, 120))
            if self.chance.random() < 0.25:
                self._close_in_order()
            else:
                self._crash()
        self._begin()
        self._let_live(self.chance.randrange(60, 160))
        self._settle()
        self.verdict.say(living(self.life.host, self.disk))
        self._close_in_order(last=True)
        self.verdict.say(judge(self))
        return Outcome(
            self.seed,
            self.trace.digest,
            len(self.disk.books.accepted),
            self.crashes,
            self.disk.struck,
            self.verdict,
            self.trace.lines,
        )

    def _begin(self) -> None:
        """A host starts on what is there."""
        self._lives += 1
        # One of here is known to be dead as soon as it is; of one of elsewhere only its silence tells.
        here = self.chance.random() < 0.6
        name = f"{_place() if here else 'away'}-{self.seed}-{self._lives}"
        self.breaths = []
        loop = SeededLoop(self.clock, self.chance, self.trace, shuffled=self.shuffled)
        desk = Desk(self.disk, self.clock.wall_ms)
        host = Host(
            desk,
            InlinePool(self.breath),
            runners=runners(self),
            config=self.config,
            clock=self.clock,
            estimator=lambda text: len(text) // 4,
        )
        self.life = Life(loop, desk, host)
        self.trace.note(f"host {self._lives} {'here' if here else 'away'} at {self.clock.monotonic():.3f}")
        with (
            mock.patch.object(core, "incarnation", return_value=name),
            mock.patch.object(core, "process_started", return_value=1),
        ):
            started = loop.create_task(host.__aenter__())
            self._until(started)
        started.result()

    def _let_live(self, beats: int) -> None:
        for number in range(beats):
            self._beat()
            if number % 8 == 0:
                self.verdict.say(living(self.life.host, self.disk, at_rest=False))

    def _beat(self) -> None:
        """One thing happens: something in the loop, on the disk, outside, or the host wants something."""
        chance, life = self.chance, self.life
        what = chance.choices(["turn", "write", "breath", "time", "ask", "fail"], [30, 16, 18, 4, 14, 1.5])[0]
        if what == "turn":
            life.loop.turn(chance.choice([1, 2, 5, 20, 100]))
        elif what == "write":
            life.desk.write(chance.choice([1, 1, 2, 5]))
        elif what == "breath":
            self._breathe()
        elif what == "time":
            self.clock.strike(chance, self.clock.monotonic() + chance.choice([0.5, 5, 40]))
        elif what == "ask":
            self._ask()
        else:
            point = chance.choice(
                ["all", *(f"{at}.{side}" for at in ("accept", "terminal", "merge") for side in ("before", "after"))]
            )
            self.disk.strikes[point] += 1

    def _breathe(self) -> bool:
        self.breaths = [(who, future) for who, future in self.breaths if not future.done()]
        if not self.breaths:
            return False
        who, future = self.breaths.pop(self.chance.randrange(len(self.breaths)))
        self.trace.note(f"  {who} goes on")
        future.set_result(None)
        return True

    def _until(self, *tasks: asyncio.Task[Any]) -> None:
        """Let everything go its way until these are done."""
        for _ in range(100_000):
            if all(task.done() for task in tasks):
                return
            if not self._go_on() and not self.clock.strike(self.chance, self.clock.monotonic() + _A_LONG_TIME):
                break
        self.verdict.leaked.append(f"it never comes to an end: {[task for task in tasks if not task.done()]}")
        raise self.verdict.error(self.seed)

    def _go_on(self) -> bool:
        """Whether anything but time can pass."""
        chance, life = self.chance, self.life
        before = len(life.desk.queue)
        if life.loop.turn(chance.choice([5, 50])):
            return True
        return life.desk.write(chance.choice([1, 3])) or self._breathe() or len(life.desk.queue) != before

    def _settle(self) -> None:
        """Nothing new, nothing fails: what there is comes to its end."""
        self.calm = True
        self.disk.strikes.clear()
        until = self.clock.monotonic() + _A_LONG_TIME
        while True:
            while self._go_on():
                pass
            if self._at_rest() or not self.clock.strike(self.chance, until):
                break
        asked = [task for task in self.life.asked if not task.done()]
        if asked:
            self.verdict.lost.append(f"nobody answers {asked}")

    def _at_rest(self) -> bool:
        life, backstage = self.life, self.life.host._backstage
        return (
            not backstage.live
            and not any(session.roster.unsettled for session in backstage.sessions.values())
            and not backstage.condensing
            and all(task.done() for task in life.asked)
            and not life.desk.runs.unfinished()
            and not life.desk.outbox.undelivered()
            and not any(session.announcer._waiting for session in backstage.sessions.values())
        )

    def _close_in_order(self, *, last: bool = False) -> None:
        life = self.life
        self.trace.note(f"host {self._lives} closes")
        closing = life.loop.create_task(life.host.close())
        while not closing.done():
            if not last and self.chance.random() < 0.05:
                self._ask()
            if not self._go_on() and not (
                self.clock.alone and self.clock.strike(self.chance, self.clock.monotonic() + _A_LONG_TIME)
            ):
                break
        if not closing.done():
            self.verdict.leaked.append("the host cannot be closed")
            raise self.verdict.error(self.seed)
        closing.result()
        self.disk.strikes.clear()
        while self._go_on():
            pass
        self.verdict.say(self._left_over())
        self._lay_down()

    def _left_over(self) -> Verdict:
        """What a closed host has left behind in this process."""
        found, life = Verdict(), self.life
        backstage = life.host._backstage
        for name in ("live", "sessions", "lines", "hungry", "condensing"):
            if getattr(backstage, name):
                found.leaked.append(f"{name} of a closed host: {getattr(backstage, name)}")
        if backstage.running:
            found.leaked.append(f"{backstage.running} slots of a closed host")
        if life.host._kernel._actors:
            found.leaked.append(f"actors of a closed host: {list(life.host._kernel._actors)}")
        tasks = [task for task in asyncio.all_tasks(life.loop) if task not in life.asked]
        if len(tasks) > self.staying:
            found.leaked.append(f"{self.staying} children ignore their end, and these tasks are left: {tasks}")
        found.wrong += life.loop.unexpected
        return found

    def _crash(self) -> None:
        """The process is gone; what it had not written never was."""
        self.trace.note(f"host {self._lives} dies at {self.clock.monotonic():.3f}")
        self.crashes += 1
        self.life.desk.lose()
        for actor in self.life.host._kernel._actors:
            if actor.registered:
                ActorRegistry.unregister(actor.actor_ref)
        self._lay_down()

    def _lay_down(self) -> None:
        life = self.life
        for task in asyncio.all_tasks(life.loop):
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # it is meant to be
        life.loop.close()
        self._dead.append(life)
        self.disk.strikes.clear()
        self.staying = 0
        self.clock = SeededClock(self.clock.monotonic() + self.chance.choice([0.0, 1.0, 30.0, 100.0]))

    def bury(self) -> None:
        """Let the dead go; the last words of their coroutines interest nobody."""
        self.breaths = []
        with warnings.catch_warnings(), mock.patch.object(sys, "unraisablehook"), _heard():
            warnings.simplefilter("ignore")
            del self._dead, self.life
            gc.collect()

    # -- what its hosts want ----------------------------------------------------------------------------

    def _ask(self) -> None:
        chance, life = self.chance, self.life
        key = chance.choice(list(KEYS))
        ways = {
            self._spawn: 10,
            self._again: 1,
            self._kill: 2,
            self._steer: 1,
            self._follow_up: 3,
            self._wait: 1,
            self._close: 0.4,
            self._release: 0.7,
            self._sweep: 1,
            self._replay: 1,
            self._prompt: 4 if KEYS[key] == "mind" else 0,
            self._compact: 0.5 if KEYS[key] == "mind" else 0,
        }
        if chance.random() < 0.05 and life.asked:
            task = chance.choice(life.asked)
            if not task.done():
                self.trace.note("somebody waits no longer")
                task.cancel()
            return
        way = chance.choices(list(ways), list(ways.values()))[0]
        self.trace.note(f"{way.__name__} {key}")
        life.asked.append(life.loop.create_task(self._answered(way.__name__, way(key))))

    async def _answered(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except _ANSWERS as error:
            self.trace.note(f"  {name}: {type(error).__name__}")
        except (RuntimeError, ActorDeadError, ValueError) as error:
            closed = self.life.host._backstage.closing and (
                "the runtime is closed" in str(error) or isinstance(error, ActorDeadError)
            )
            if not closed and "nobody would hear it" not in str(error):
                self.verdict.wrong.append(f"{name} raised {error!r}")
        except Exception as error:  # noqa: BLE001 - that is the point
            self.verdict.wrong.append(f"{name} raised {error!r}")

    async def _session(self, key: str) -> AsyncSession:
        on_results = self._woken if KEYS[key] != "mind" else None
        return await self.life.host.session(key, workspace=_FOLDER.name, runner=KEYS[key], on_results=on_results)

    async def _woken(self, results: Results) -> bool:
        await self.breath("announced")
        if not self.calm and self.chance.random() < 0.2:
            return False
        self.announced.update(result.run_id for result in results)
        return True

    async def _handed(self, handle: AsyncRunHandle) -> None:
        self.accepted.add(handle.run_id)
        self.trace.note(f"  accepted {handle.run_id}")
        result = await handle.result()
        self.told[result.run_id] = (result.end_reason, result.failure, result.partial)
        if result.kept:
            self.kept.append(result.session_key)

    async def _spawn(self, key: str) -> None:
        session = await self._session(key)
        if self._labels < MOST_RUNS:
            spawn = some_spawn(self, runner=self.chance.choices(RUNNERS, [4, 1])[0])
            self.spawns.append(spawn)
            await self._handed(await session.spawn(spawn))

    async def _again(self, key: str) -> None:
        session = await self._session(key)
        known = [spawn for spawn in self.spawns if spawn.idempotency_key is not None]
        if known:
            await self._handed(await session.spawn(self.chance.choice(known)))

    def _some_run(self, key: str) -> RunId | None:
        runs = self.life.host.store.runs.find(limit=20).items
        return self.chance.choice(runs).run_id if runs else None

    async def _kill(self, key: str) -> None:
        session = await self._session(key)
        run_id = self._some_run(key)
        if run_id is not None:
            report = await session.kill(run_id)
            self.trace.note(f"  killed {len(report.killed)}")

    async def _steer(self, key: str) -> None:
        session = await self._session(key)
        run_id = self._some_run(key)
        if run_id is not None:
            await session.steer(run_id, "another way")

    async def _follow_up(self, key: str) -> None:
        session = await self._session(key)
        if self.kept:
            answer = await session.follow_up(
                self.chance.choice(self.kept), "and now", wait=self.chance.choice([0, 0, 3])
            )
            if isinstance(answer, AsyncRunHandle):
                await self._handed(answer)

    async def _wait(self, key: str) -> None:
        session = await self._session(key)
        run_id = self._some_run(key)
        if run_id is not None:
            await session.wait([run_id], timeout=self.chance.choice([None, 2.0]))

    async def _close(self, key: str) -> None:
        await (await self._session(key)).close()

    async def _release(self, key: str) -> None:
        session = await self._session(key)
        if self.kept:
            await session.release(self.chance.choice(self.kept))

    async def _sweep(self, key: str) -> None:
        await self.life.host.sweep()

    async def _replay(self, key: str) -> None:
        letters = await self.life.host.dead_letters()
        if letters:
            await self.life.host.replay(self.chance.choice(letters).id)

    async def _prompt(self, key: str) -> None:
        if self._labels < MOST_RUNS:
            await (await self._session(key)).prompt("Go on")

    async def _compact(self, key: str) -> None:
        await (await self._session(key)).compact()


_FOLDER = tempfile.TemporaryDirectory(prefix="understudy-simulation-")
"""Where all children work; nothing is ever written there."""


class _Errors(logging.Handler):
    """What the runtime itself calls an error."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, DiskError):  # that one was made to happen
            self.said.append(record.getMessage() + (f": {error!r}" if error else ""))


@contextmanager
def _heard() -> Iterator[list[str]]:
    """The runtime's log, from errors on."""
    logger, handler = logging.getLogger("understudy"), _Errors()
    level, propagate = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.ERROR)
    logger.propagate = False
    try:
        yield handler.said
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate


def simulate(seed: int, *, keep: bool = False) -> Outcome:
    """Play the history of this seed. What was found wrong is in its verdict."""
    collecting = gc.isenabled()
    gc.disable()  # it would let go of coroutines, and they would speak, at moments that no seed decides
    simulation = Simulation(seed, keep=keep)
    try:
        with _heard() as said, mock.patch.object(retry, "SystemRandom", return_value=simulation.chance):
            outcome = simulation.play()
            outcome.verdict.wrong += said
            return outcome
    finally:
        simulation.verdict = Verdict()  # what follows is not part of the history
        simulation.bury()
        if collecting:
            gc.enable()


def main() -> None:
    """Show the history of one seed, line by line."""
    seed = int(sys.argv[1])
    outcome = simulate(seed, keep=True)
    sys.stdout.write("\n".join([*outcome.trace, outcome.digest, str(outcome.verdict), ""]))


if __name__ == "__main__":
    main()
