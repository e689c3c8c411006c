"""Kill hosts at their commit points and see that nothing acknowledged is lost and nothing is merged twice.

A round is a database and a few lives of a host. All lives but the last end by SIGKILL at a commit point of the
seed's choice, in the middle of work or of the recovery from the life before; the last one recovers, and then
the file is judged. Each life is a process of its own, forked from this one, which never opens the file itself.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import json
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, get_args

from understudy.actors import AsyncRunHandle, AsyncRuntime, FunctionRunner
from understudy.actors.testing import CrashPoint
from understudy.persistence import Store
from understudy.protocol import RuntimeConfig, Spawn
from understudy.protocol.commit_points import CommitPoint

if TYPE_CHECKING:
    from collections.abc import Callable

    from understudy.actors.runners import AsyncFunctionContext
    from understudy.protocol import SpawnPacket

KEY = "agent:atlas:main"
POINTS: tuple[CommitPoint, ...] = get_args(CommitPoint)
CONFIG = RuntimeConfig(max_children_per_agent=2, max_queued_per_agent=50, recent_files_max=1_000, max_restarts=9)
PATIENCE = 60.0


class LostError(AssertionError):
    """A promise was broken."""


async def work(packet: SpawnPacket, context: AsyncFunctionContext) -> str:
    """Touch a file, spend a token; fail, delegate and wait, or delegate and leave, as the task says."""
    context.touch(f"{packet.label}.txt", "write")
    context.usage(input_tokens=1)
    if packet.task == "fail":
        raise ValueError("as asked")
    if packet.task in {"delegate", "leave"} and not packet.is_leaf:
        below = await context.spawn(Spawn(task="plain", label=f"{packet.label}.below", restart=packet.restart))
        if packet.task == "delegate":
            await below.result()
    await asyncio.sleep(0)
    return f"{packet.label} is done"


async def live(database: Path, seed: int, say: Callable[[str, object], None], strike: CrashPoint | None) -> None:
    """One life of a host: take up what is there, then spawn more and wait for all of it."""
    chance = random.Random(seed)  # noqa: S311 - repeatable, not secret
    runtime = AsyncRuntime(database, runners={"default": FunctionRunner(work)}, config=CONFIG, commit_hook=strike)
    async with runtime:
        session = await runtime.session(KEY, workspace=database.parent)
        handles = [runtime.run(record.run_id) for record in runtime.store.runs.unfinished()]
        for number in range(chance.randint(2, 5) if strike is not None else 0):
            task = chance.choice(["plain", "plain", "fail", "delegate", "leave"])
            restart = chance.choice(["fail", "resume"])
            cleanup = chance.choice(["delete", "keep"])
            handle = await session.spawn(Spawn(task=task, label=f"{seed}-{number}", restart=restart, cleanup=cleanup))
            say("accepted", handle.run_id)
            handles.append(handle)
            if cleanup == "keep":
                more = await session.follow_up(handle.session_key, chance.choice(["plain", "fail", "delegate"]))
                assert isinstance(more, AsyncRunHandle)
                say("accepted", more.run_id)
                handles.append(more)
        for handle in handles:
            result = await handle.result(PATIENCE)
            say("result", [result.run_id, result.end_reason.value, result.output])
        # Grandchildren that were left to themselves are nobody's handle.
        for record in runtime.store.runs.unfinished():
            await runtime.run(record.run_id).result(PATIENCE)


def judge(database: Path, heard: list[tuple[str, Any]], say: Callable[[str, object], None]) -> None:
    """Hold the file against everything its hosts had said before they died, and say how many runs it has."""
    with Store.open(database, wall_ms=lambda: time.time_ns() // 1_000_000) as store:
        runs = {run.run_id: run for run in store.runs.find(limit=1_000).items}
        results = {run_id: store.runs.result(run_id) for run_id in runs}
        accepted = {said for what, said in heard if what == "accepted"}
        say("runs", len(runs))
        expect(accepted <= set(runs), f"lost: accepted and not there: {accepted - set(runs)}")
        expect(not store.runs.unfinished(), f"lost: without an end: {[run.run_id for run in store.runs.unfinished()]}")
        expect(None not in results.values(), "lost: an end without a result")
        expect(not store.outbox.undelivered(dead=True), f"lost: undelivered: {store.outbox.undelivered(dead=True)}")
        expect(not store.dead_letters.find().items, f"lost: dead letters: {store.dead_letters.find().items}")
        expect(not store.problems(), f"{store.problems()}")
        for what, said in heard:
            if what == "result":
                run_id, reason, output = said
                stored = results[run_id]
                same = stored is not None and (stored.end_reason.value, stored.output) == (reason, output)
                expect(same, f"twice: told {said}, stored {stored}")
        sessions = {KEY, *(run.parent_session_key for run in runs.values())}
        texts = [stored.turn.text for key in sessions for stored in store.transcripts.turns(key)]
        notes = collections.Counter(
            text.partition("]")[0].rpartition(": ")[2] for text in texts if text.startswith("[Subagent Result: ")
        )
        expected = collections.Counter(run.label for run in runs.values())
        expect(not expected - notes, f"lost: narrated {notes}, expected each once of {expected}")
        expect(not notes - expected, f"twice: narrated {notes}, expected each once of {expected}")
        context = store.sessions.working_context(KEY)
        merged = set() if context is None else set(context.recent_files)
        touched = {file.path for result in results.values() if result is not None for file in result.recent_files}
        expect(touched <= merged, f"lost: touched and not merged: {touched - merged}")


def expect(holds: bool, otherwise: str) -> None:
    """Hold, or be lost."""
    if not holds:
        raise LostError(otherwise)


def in_a_process(life: Callable[[Callable[[str, object], None]], None]) -> tuple[int, list[tuple[str, Any]]]:
    """Fork, live there, and give how it ended and everything it said. A line is there before its writer can die."""
    ear, mouth = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        os.close(ear)
        _be(life, mouth)
    os.close(mouth)
    with os.fdopen(ear, encoding="utf-8") as lines:
        heard = [json.loads(line) for line in lines]
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), [(what, said) for what, said in heard]


def _be(life: Callable[[Callable[[str, object], None]], None], mouth: int) -> NoReturn:
    code = 1
    try:
        life(lambda what, said: _say(mouth, what, said))
        code = 0
    except BaseException as error:  # noqa: BLE001 - told to the parent, whatever it is
        _say(mouth, "error", f"{type(error).__name__}: {error}")
    finally:
        os._exit(code)


def _say(mouth: int, what: str, said: object) -> None:
    os.write(mouth, (json.dumps([what, said]) + "\n").encode())


def play(seed: int) -> tuple[list[str], int]:
    """One round; gives the points at which its hosts were killed, and how many runs there were. Raises LostError."""
    chance = random.Random(seed)  # noqa: S311 - repeatable, not secret
    struck: list[str] = []
    heard: list[tuple[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="kill9-") as folder:
        database = Path(folder, "agents.db")
        # The first strike goes round the points, so that any row of seeds meets all of them.
        points = [POINTS[seed % len(POINTS)], *chance.choices(POINTS, k=chance.randint(0, 2))]
        for number, point in enumerate(points):
            strike, life_seed = CrashPoint(point, "kill", hit=chance.randint(1, 4)), seed * 10 + number

            def host(say: Callable[[str, object], None], strike: CrashPoint = strike, own: int = life_seed) -> None:
                asyncio.run(live(database, own, say, strike))

            code, said = in_a_process(host)
            heard += said
            expect(code in {0, -signal.SIGKILL}, f"a host died of itself: {said[-1:]}")
            struck += [point] if code else []
        code, said = in_a_process(lambda say: asyncio.run(live(database, seed, say, None)))
        heard += said
        expect(code == 0, f"the last host could not recover: {said[-1:]}")
        code, said = in_a_process(lambda say: judge(database, heard, say))
        expect(code == 0, f"{said}")
    return struck, next(count for what, count in said if what == "runs")


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=1_000)
    options.add_argument("--seed", type=int, default=1, help="of the first round; each further one has the next")
    asked = options.parse_args()
    kills: collections.Counter[str] = collections.Counter()
    runs = 0
    broken: list[str] = []
    print(f"seeds {asked.seed} to {asked.seed + asked.rounds - 1}", flush=True)
    for seed in range(asked.seed, asked.seed + asked.rounds):
        try:
            struck, accepted = play(seed)
            kills.update(struck)
            runs += accepted
        except LostError as lost:
            broken.append(str(lost))
            print(f"seed {seed}: {lost}\n  again: ./scripts/kill9 --rounds 1 --seed {seed}", flush=True)
    lost, twice = (sum(f"{what}: " in each for each in broken) for what in ("lost", "twice"))
    print(
        f"{asked.rounds} rounds, {kills.total()} hosts killed, {runs} runs accepted, "
        f"{len(broken)} rounds broken: lost {lost}, twice {twice}"
    )
    for point in POINTS:
        print(f"  {point:<15} {kills[point]}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
