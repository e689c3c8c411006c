"""What must hold of every history, however it went."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _disk import Disk
    from _simulation import Host, Simulation

    from understudy.persistence import RunRecord

_NOTE = re.compile(r"\[Subagent Result: (.+?)\]$", re.MULTILINE)


class BrokenError(AssertionError):
    """A promise was not kept."""


@dataclass
class Verdict:
    """What was found, in words; empty lists are a history as it should be."""

    lost: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)
    leaked: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    """Anything else that must not be."""

    def say(self, more: Verdict) -> None:
        """Add what somebody else has found."""
        self.lost += more.lost
        self.twice += more.twice
        self.leaked += more.leaked
        self.wrong += more.wrong

    @property
    def held(self) -> bool:
        return not (self.lost or self.twice or self.leaked or self.wrong)

    def error(self, seed: int) -> BrokenError:
        """The same as an error, with the line to see it again."""
        return BrokenError(f"seed {seed}: {self}\n  again: ./scripts/faults --only simulation --seed {seed}")


def living(host: Host, disk: Disk, *, at_rest: bool = True) -> Verdict:
    """What must hold of a host at any moment; and, ``at_rest``, when everything has come to its end."""
    found = Verdict()
    backstage, config = host._backstage, host.config
    total = config.max_total_children
    resumed = sum(run.generation > 1 for run in backstage.live.values())
    if total is not None and backstage.running - resumed > total:
        found.wrong.append(f"{backstage.running} children run, {total} may")
    holding = [run for run in backstage.live.values() if not run.queued and run.packet.graph is None]
    if backstage.running != len(holding):
        found.leaked.append(f"{backstage.running} slots are taken by {len(holding)} runs")
    for session in backstage.sessions.values():
        files, roster = session.context.recent_files, session.roster
        # Those that a restart has brought here, perhaps of a session that is over, were admitted there.
        admitted = roster.running - sum(run.generation > 1 for run in roster.unfinished.values())
        if admitted > config.max_children_per_agent:
            found.wrong.append(f"{session.key} has {admitted} children, {config.max_children_per_agent} may be")
        if len(set(files)) != len(files) or len(files) > config.recent_files_max:
            found.wrong.append(f"{session.key} has these recent files: {files}")
    for run in backstage.live.values():
        if run.packet.depth >= config.max_spawn_depth:
            found.wrong.append(f"{run.packet.run_id} is as deep as {run.packet.depth}")
    if at_rest:
        found.say(_rested(host, exact=not disk.struck))
    found.wrong += disk.books.wrong
    disk.books.wrong = []
    return found


def _rested(host: Host, *, exact: bool) -> Verdict:
    found = Verdict()
    backstage = host._backstage
    for name in ("live", "condensing", "lines", "hungry"):
        if getattr(backstage, name):
            found.leaked.append(f"{name} at rest: {getattr(backstage, name)}")
    for session in backstage.sessions.values():
        if session.owner is not None:
            found.leaked.append(f"session {session.key} of a run that is over")
        if session.roster.unsettled or session.roster.queue or session.fostered or session.owed:
            found.leaked.append(f"session {session.key} still waits for {list(session.roster.unsettled)}")
        if session.mind is None:
            used, stored = session.tree.usage, host.store.runs.usage(session.key)
            # What a summary has cost is counted, but a disk that fails then does not learn of it.
            if used != stored if exact else used.total_tokens < stored.total_tokens:
                found.wrong.append(f"the tree of {session.key} used {used}, the sum of its runs is {stored}")
    return found


def judge(simulation: Simulation) -> Verdict:
    """Hold the store against everything that was ever promised."""
    found = Verdict()
    store, books = simulation.disk.inner, simulation.disk.books
    found.wrong += books.wrong
    runs = {run.run_id: run for run in store.runs.find(limit=1_000).items}
    for run_id in sorted((simulation.accepted | books.accepted) - set(runs)):
        found.lost.append(f"{run_id} was accepted, and is not there")
    buried = {letter.run_id for letter in store.dead_letters.find(limit=1_000).items}
    for run in runs.values():
        found.say(_judge_run(run, simulation, buried=run.run_id in buried))
    for run_id, times in simulation.announced.items():
        if times > 1:
            found.twice.append(f"{run_id} was announced {times} times")
    _compare_notes(found, simulation, {run_id for run_id, run in runs.items() if run.facts.delivered_at is not None})
    found.wrong += store.problems()
    return found


def _judge_run(run: RunRecord, simulation: Simulation, *, buried: bool) -> Verdict:
    """One end, one result, and one delivery, or a dead letter that says why there is none."""
    found, store, run_id = Verdict(), simulation.disk.inner, run.run_id
    result = store.runs.result(run_id)
    if run.facts.ended_at is None or result is None:
        found.lost.append(f"{run_id} ({run.label}) has no end: {run.facts}")
        return found
    stored = (result.end_reason, result.failure, result.partial)
    told = simulation.told.get(run_id, stored)
    if told != stored:
        found.twice.append(f"{run_id} was told as {told}, and stored as {stored}")
    if run.facts.delivered_at is None and not buried:
        found.lost.append(f"{run_id} ({run.label}) ended and was never delivered")
    delivered, late = simulation.disk.books.delivered[run_id], store.runs.late_endings(run_id)
    if delivered > 1:
        found.twice.append(f"{run_id} was delivered {delivered} times")
    if late:
        found.twice.append(f"{run_id} ended as {run.facts.end_reason}, and then as {late}")
    if result.usage != run.usage:
        found.wrong.append(f"{run_id} used {run.usage}, its result says {result.usage}")
    return found


def _compare_notes(found: Verdict, simulation: Simulation, delivered: set[str]) -> None:
    """Each delivered result is told exactly once, in one transcript."""
    store = simulation.disk.inner
    runs = store.runs.find(limit=1_000).items
    keys = {run.parent_session_key for run in runs} | {run.root_session_key for run in runs}
    told: Counter[str] = Counter()
    answered: Counter[str] = Counter()
    for key in sorted(keys):
        for stored in store.transcripts.turns(key):
            if stored.turn.role in {"user", "tool"}:
                (told if stored.turn.role == "user" else answered).update(_NOTE.findall(stored.turn.text))
    expected = Counter(run.label for run in runs if run.run_id in delivered)
    for label in sorted(told.keys() | expected.keys()):
        # A model may ask for the same result by several tools, and each has it in its answer.
        if told[label] + answered[label] < expected[label]:
            found.lost.append(f"{label} was delivered {expected[label]} times, and narrated {told[label]} times")
        elif told[label] > expected[label]:
            found.twice.append(f"{label} was delivered {expected[label]} times, and narrated {told[label]} times")
