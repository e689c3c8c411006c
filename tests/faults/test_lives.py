"""Any order of spawns, turns, tools, ends, follow-ups, sweeps, crashes and time: all is as it ought to be."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from _lives import Lives
from _model_of_lives import LIMIT, QUEUE, QUEUE_SECONDS, Run, Tree
from _puppets import Puppets, finish
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.errors import FlakyFailure
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from understudy.actors import recovery
from understudy.actors.handles import RunHandle
from understudy.actors.roster import Roster
from understudy.actors.session import SessionActor
from understudy.protocol import Spawn, SpawnRejected
from understudy.protocol.model import Turn, UsageReport
from understudy.protocol.runner import Said, ToolEnded, ToolStarted, Touched
from understudy.protocol.usage import Usage

if TYPE_CHECKING:
    from collections.abc import Callable

    from understudy.actors import Runtime, Session
    from understudy.actors.announcing import Results
    from understudy.actors.endings import Ending
    from understudy.persistence import RunRecord

KEY = "agent:atlas:main"
DEPTH = 4
FILES = 3
EXAMPLES = os.environ.get("UNDERSTUDY_LIVES")
"""How many of chance's making; without it a few, always the same."""
CONFIG = {
    "max_children_per_agent": LIMIT,
    "max_queued_per_agent": QUEUE,
    "queue_timeout_ms": round(QUEUE_SECONDS * 1000),
    "max_spawn_depth": DEPTH,
    "recent_files_max": FILES,
    "announce_debounce_ms": 0,
    "max_restarts": 99,
}

picks = st.integers(0, 99)
"""Which one of those there are."""


class TheLives(RuleBasedStateMachine):
    """A host, its session and its children, beside what ought to become of them."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(prefix="understudy-lives-")
        self.lives = Lives(Path(self.folder.name))
        self.tree = Tree()
        self.told: Counter[str] = Counter()
        self.ends: dict[str, tuple[object, ...]] = {}
        self.refuses = 0
        self.labels = 0
        self.stack = ExitStack()
        self.puppets: Puppets
        self.runtime: Runtime
        self.session: Session

    @initialize()
    def start(self) -> None:
        """A host starts, on whatever is there."""
        self.puppets = Puppets(self.lives.clock)
        self.runtime = self.stack.enter_context(self.lives.host(self.puppets, config=CONFIG))
        self.open()

    def open(self) -> None:
        self.session = self.runtime.session(KEY, workspace=self.lives.folder, on_results=self.woken)
        self.lives.clock.run_until_idle()

    def woken(self, results: Results) -> bool:
        """The host is told of results; it may not be in the mood."""
        if self.refuses:
            self.refuses -= 1
            return False
        self.told.update(result.run_id for result in results)
        return True

    def teardown(self) -> None:
        problems = self.runtime.store.problems() if hasattr(self, "runtime") else []
        self.stack.close()
        self.folder.cleanup()
        assert problems == []

    # -- who there is -----------------------------------------------------------------------------------

    def some(
        self, pick: int, *, state: str | None = "running", fit: Callable[[Run], bool] = lambda _run: True
    ) -> Run | None:
        fits = [run for run in self.tree.alive(state) if fit(run)]
        return fits[pick % len(fits)] if fits else None

    def working(self) -> bool:
        return bool(self.tree.alive("running"))

    def asked(self, *, keep: bool, resumes: bool, seconds: float) -> tuple[str, Spawn]:
        self.labels += 1
        label = f"r{self.labels}"
        return label, Spawn(
            task=f"be {label}",
            label=label,
            cleanup="keep" if keep else "delete",
            restart="resume" if resumes else "fail",
            timeout_ms=round(seconds * 1000),
            announce=True,
        )

    # -- what happens -----------------------------------------------------------------------------------

    @rule(keep=st.booleans(), resumes=st.booleans(), seconds=st.sampled_from([7.3, 25.7]))
    def spawn(self, *, keep: bool, resumes: bool, seconds: float) -> None:
        label, spawn = self.asked(keep=keep, resumes=resumes, seconds=seconds)
        if self.tree.room(None) == "full":
            with pytest.raises(SpawnRejected, match="wait"):
                self.session.spawn(spawn)
            return
        handle = self.session.spawn(spawn)
        self.tree.accept(Run(handle.run_id, label, None, keep, resumes, seconds, self.tree.now))

    @precondition(working)
    @rule(pick=picks, keep=st.booleans(), resumes=st.booleans(), seconds=st.sampled_from([7.3, 25.7]))
    def delegate(self, pick: int, *, keep: bool, resumes: bool, seconds: float) -> None:
        above = self.some(pick)
        assert above is not None
        label, spawn = self.asked(keep=keep, resumes=resumes, seconds=seconds)
        room = self.tree.room(above)
        before = len(self.puppets.refused(above.run_id))
        self.puppets.tell(above.run_id, spawn)
        self.lives.clock.run_until_idle()
        refused = self.puppets.refused(above.run_id)[before:]
        if above.depth + 1 >= DEPTH:
            assert refused == ["depth_exceeded"]
        elif room == "full":
            assert refused == ["queue_full"]
        else:
            assert refused == []
            (record,) = [run for run in self.records().values() if run.label == label]
            self.tree.accept(Run(record.run_id, label, above, keep, resumes, seconds, self.tree.now, home=above))

    @precondition(working)
    @rule(pick=picks, file=st.sampled_from("abcde"))
    def turn(self, pick: int, file: str) -> None:
        run = self.some(pick)
        assert run is not None
        said = Said(Turn("assistant", f"{run.label} works"))
        self.puppets.tell(run.run_id, Touched(file), UsageReport(Usage(input_tokens=3)), said)
        run.tokens += 3

    @precondition(working)
    @rule(pick=picks)
    def tool(self, pick: int) -> None:
        run = self.some(pick)
        assert run is not None
        self.puppets.tell(run.run_id, ToolStarted("t", "work"), UsageReport(Usage(output_tokens=1)), ToolEnded("t"))
        run.tokens += 1

    @precondition(working)
    @rule(pick=picks, well=st.booleans())
    def finish(self, pick: int, *, well: bool) -> None:
        run = self.some(pick)
        assert run is not None
        self.puppets.tell(run.run_id, finish() if well else ValueError("as told"))
        self.tree.finish(run, ("completed", None) if well else ("failed", "runner_crash"))

    @precondition(lambda self: bool(self.tree.runs))
    @rule(pick=picks)
    def kill(self, pick: int) -> None:
        """Anybody: also one that is over, and then nothing happens."""
        run = self.tree.runs[pick % len(self.tree.runs)]
        down = [] if run.state == "ended" else [run, *self.tree.below(run)]
        report = self.session.kill(run.run_id)
        assert set(report.killed) == {each.run_id for each in down}
        if down:
            self.tree.kill(run)

    @rule(pick=picks)
    def follow_up(self, pick: int) -> None:
        """A kept child that is over, with nothing of it at work, is told more."""
        busy = {run.label for run in self.tree.alive()} | {
            each.label for run in self.tree.alive() for each in self.tree.lineage(run)
        }
        rested = [run for run in self.tree.runs if run.keep and run.parent is None and run.label not in busy]
        if not rested:
            return
        before = rested[pick % len(rested)]
        session_key = self.records()[before.run_id].session_key
        if self.tree.room(None) == "full":
            with pytest.raises(SpawnRejected, match="wait"):
                self.session.follow_up(session_key, "and now")
            return
        handle = self.session.follow_up(session_key, "and now")
        assert isinstance(handle, RunHandle)
        self.tree.accept(
            Run(
                handle.run_id,
                before.label,
                None,
                keep=True,
                resumes=before.resumes,
                seconds=before.seconds,
                accepted=self.tree.now,
            )
        )

    @rule(seconds=st.sampled_from([1, 5, 10, 40]))
    def advance(self, seconds: int) -> None:
        """Deadlines and patience in the queue strike, each in its time."""
        self.lives.clock.advance(seconds)
        self.tree.pass_by(seconds)

    @rule(times=st.integers(1, 2))
    def refuse(self, times: int) -> None:
        """The host does not take the next announcements: they are made again."""
        self.refuses = times

    @rule()
    def sweep(self) -> None:
        assert self.runtime.sweep() == 0, "nobody is a ghost"

    @rule()
    def stop_parent(self) -> None:
        """The session is closed, and opened again."""
        self.session.close()
        self.tree.stop_all()
        self.open()

    @rule()
    def restart(self) -> None:
        """An orderly stop and a new start, on the same file."""
        self.stack.close()
        self.tree.stop_host()
        self.start()

    @rule()
    def crash(self) -> None:
        """The host is gone at once, with everything that was not committed; another one starts."""
        self.lives.clock.run_until_idle()
        self.lives.crash()
        self.stack.close()  # what it still says, it says to a file that nobody reads any more
        self.tree.crash()
        self.start()

    # -- what must be -----------------------------------------------------------------------------------

    def records(self) -> dict[str, RunRecord]:
        return {run.run_id: run for run in self.runtime.store.runs.find(limit=1_000).items}

    @invariant()
    def everything_is_as_it_ought_to_be(self) -> None:
        if not hasattr(self, "runtime"):
            return
        self.lives.clock.run_until_idle()
        records = self.records()
        assert set(records) == {run.run_id for run in self.tree.runs}, "accepted, and nothing else"
        for run in self.tree.runs:
            self._is_as_it_ought_to_be(run, records[run.run_id])
        self._nothing_lives_beyond_its_time()
        self._each_end_is_told_once(records)
        files = self.session.working_context.recent_files
        assert len(set(files)) == len(files) <= FILES
        usage = self.runtime.store.runs.usage(KEY)
        assert usage.total_tokens == sum(run.tokens for run in self.tree.runs)
        assert self.session._actor.tree.usage == usage

    def _is_as_it_ought_to_be(self, run: Run, record: RunRecord) -> None:
        facts, store = record.facts, self.runtime.store
        assert record.usage.total_tokens == run.tokens
        assert (record.depth, facts.generation) == (run.depth, run.generation)
        result = store.runs.result(run.run_id)
        if run.end is None:
            assert (facts.status, result) == ({"queued": "pending"}.get(run.state, run.state), None)
            assert run.state == "queued" or self.puppets.begun(run.run_id)
            return
        assert (facts.end_reason, facts.failure and facts.failure.kind) == run.end
        assert result is not None
        assert (result.end_reason, result.failure, result.usage) == (facts.end_reason, facts.failure, record.usage)
        end = (facts.ended_at, facts.end_reason, result.output)
        assert self.ends.setdefault(run.run_id, end) == end, "terminal is final"
        assert facts.delivered_at is not None
        assert self.told[run.run_id] <= 1

    def _nothing_lives_beyond_its_time(self) -> None:
        backstage = self.runtime._backstage
        assert {run.packet.run_id for run in backstage.live.values()} == {run.run_id for run in self.tree.alive()}
        assert backstage.running == len(self.tree.alive("running"))
        assert not backstage.lines
        children = {child.run_id: child.state for child in self.session.children()}
        assert children == {run.run_id: run.state for run in self.tree.alive() if run.home is None}

    def _each_end_is_told_once(self, records: dict[str, RunRecord]) -> None:
        store = self.runtime.store
        assert store.outbox.undelivered(dead=True) == []
        keys = {KEY, *(record.parent_session_key for record in records.values())}
        texts = [stored.turn.text for key in keys for stored in store.transcripts.turns(key)]
        notes = Counter(
            text.partition("]")[0].rpartition(": ")[2] for text in texts if text.startswith("[Subagent Result: ")
        )
        assert notes == Counter(run.label for run in self.tree.runs if run.state == "ended")


TestLives = pytest.mark.slow(TheLives.TestCase)  # whole lives on real files, a few each example
TestLives.settings = settings(
    max_examples=int(EXAMPLES or 4),
    stateful_step_count=20,
    deadline=None,
    derandomize=EXAMPLES is None,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate, Phase.shrink],
)


def no_child_is_ended(patch: pytest.MonkeyPatch) -> None:
    async def spare(_self: SessionActor, _ending: Ending) -> None:
        """Nobody."""

    patch.setattr(SessionActor, "end_children", spare)


def no_slot_is_freed(patch: pytest.MonkeyPatch) -> None:
    occupy = Roster._occupy
    patch.setattr(Roster, "_occupy", lambda self, slots: occupy(self, max(slots, 0)))


def nothing_resumes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(recovery, "fate", lambda _record, _backstage: "interrupted")


@pytest.mark.slow  # lives on real files, until one of them shows it
@pytest.mark.parametrize(
    "break_it", [no_child_is_ended, no_slot_is_freed, nothing_resumes], ids=lambda mutation: mutation.__name__
)
def test_what_ought_not_to_be_is_noticed(
    break_it: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one thing taken out of the runtime, some life is not as the model says."""
    break_it(monkeypatch)
    few = settings(TestLives.settings, max_examples=30, derandomize=True, phases=[Phase.generate])
    with pytest.raises((AssertionError, FlakyFailure)):
        run_state_machine_as_test(TheLives, settings=few)
