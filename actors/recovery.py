"""After a crash: every run of a dead host is finished, taken up again, or queued again; nothing is forgotten."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Literal

from understudy.actors.conclusion import outputs_of
from understudy.actors.delivery import bring, bury
from understudy.actors.endings import ghost
from understudy.actors.host import surely_dead
from understudy.actors.inheritance import inheriting
from understudy.actors.live_run import LiveRun
from understudy.actors.turns.exchange import Exchange
from understudy.persistence.operations import FinishRun, HostStopped, RestartRun
from understudy.persistence.redaction import REDACTED
from understudy.protocol import RecentFile, SubAgentResult
from understudy.protocol.condense import condense

if TYPE_CHECKING:
    from understudy.actors.backstage import Backstage
    from understudy.actors.session import SessionActor
    from understudy.persistence import RunRecord, SessionRecord
    from understudy.protocol import SessionKey

logger = logging.getLogger("understudy")

Fate = Literal["queued", "resumes", "interrupted", "vanished"]


def stale_before(backstage: Backstage) -> int:
    """A host last heard of before this is taken for dead."""
    config = backstage.config
    return backstage.now() - max(config.ghost_grace_ms, 3 * config.ghost_sweep_interval_ms)


async def sign_off_the_dead(backstage: Backstage) -> None:
    """Hosts that died without a word hold nothing any more."""
    for host in backstage.store.hosts.running():
        if host.host == backstage.host:
            continue
        if surely_dead(host) or host.heartbeat_at < stale_before(backstage):
            await backstage.store.transaction(HostStopped(host.host, backstage.now()))
            logger.info("host %s (pid %s) is dead", host.host, host.pid)


def in_need(backstage: Backstage) -> list[SessionKey]:
    """The host's sessions that have something to be recovered: unfinished runs of dead hosts, or waiting results.

    Those whose runs were accepted first come first. An open session is among them if its recovery has failed.
    """
    store = backstage.store
    abandoned = store.runs.abandoned(stale_before=stale_before(backstage))
    keys = dict.fromkeys(run.root_session_key for run in abandoned)
    for entry in store.outbox.undelivered():
        session = store.sessions.get(entry.session_key)
        if session is not None:
            keys[session.root_session_key] = None
    return [key for key in keys if key not in backstage.sessions or not backstage.sessions[key].recovered]


def closed_for_good(backstage: Backstage, session: SessionRecord) -> bool:
    """Whether a session was closed and not opened again since: nobody holds it, and nothing below is unfinished."""
    if session.completed_at is None or session.holder is not None:
        return False
    abandoned = backstage.store.runs.abandoned(stale_before=stale_before(backstage))
    return all(run.root_session_key != session.session_key for run in abandoned)


def fate(record: RunRecord, backstage: Backstage) -> Fate:
    """What becomes of an unfinished run whose host is gone."""
    facts, packet, config = record.facts, record.packet, backstage.config
    # A secret that was redacted on write is gone: the child cannot be given what it had.
    unarmed = any(REDACTED in value for value in packet.env.values())
    able = not unarmed and packet.runner in backstage.runners and packet.depth < config.max_spawn_depth
    if facts.started_at is None:
        return "vanished" if record.queued_at is None else "queued" if able else "interrupted"
    if packet.restart != "resume" or facts.cancel_requested_at is not None:
        return "interrupted"
    now = backstage.now()
    restarts = facts.generation - 1
    last = record.restarted_at or facts.started_at
    too_often = restarts >= config.max_restarts and now - last < config.restart_window_ms
    out_of_time = facts.deadline_at is not None and facts.deadline_at <= now
    return "interrupted" if too_often or out_of_time or not able else "resumes"


async def recover(session: SessionActor) -> None:
    """Bring everything below an opened session to where it belongs."""
    runs = session.backstage.store.runs
    for record in runs.children(session.key, unfinished=True):
        await _recover_run(session, record)
    if session.owner is None:
        # What is left has lost its parent: one that had finished while they still worked.
        for record in runs.unfinished(root_session_key=session.key):
            await _recover_run(_nearest(session, record), record)
    # Whoever ran before them may be gone: nobody else would call them.
    session.roster.grant()


async def _recover_run(session: SessionActor, record: RunRecord) -> None:
    backstage = session.backstage
    now = backstage.store.runs.get(record.run_id)
    if record.run_id in backstage.live or now is None or now.facts.ended_at is not None:
        return  # taken up or ended together with one above it
    what = fate(record, backstage)
    if what in {"queued", "resumes"} and await _take_over(session, record, queued=what == "queued"):
        return
    await _end_all(session, record)


def _nearest(session: SessionActor, record: RunRecord) -> SessionActor:
    """The session of the nearest run above that lives; the host's own when there is none."""
    backstage, above = session.backstage, record.parent_run_id
    while above is not None:
        if above in backstage.live:
            return backstage.live[above].own_session()
        parent = backstage.store.runs.get(above)
        above = None if parent is None else parent.parent_run_id
    return session


async def deliver_waiting(session: SessionActor) -> None:
    """Results that a dead host had committed and not delivered."""
    store = session.backstage.store
    for entry in store.outbox.undelivered():
        record, result = store.runs.get(entry.run_id), store.runs.result(entry.run_id)
        if record is None or result is None or record.root_session_key != session.root_key:
            continue
        if any(entry.run_id in open_.roster.unsettled for open_ in session.backstage.sessions.values()):
            continue  # of this very host, and on its way
        home = session.backstage.sessions.get(entry.session_key, session)
        await bring(home.living(), result, announce=record.announce)


async def deliver_stranded(backstage: Backstage) -> None:
    """Results for which the store had no room at all when they were ready: it may have some now."""
    stranded, backstage.stranded = backstage.stranded, {}
    for run_id, key in stranded.items():
        record, result = backstage.store.runs.get(run_id), backstage.store.runs.result(run_id)
        session = backstage.sessions.get(key)
        if record is None or result is None:
            continue
        if session is None:
            await bury(backstage, key, result, "its session was closed before the result could be stored")
        else:
            await bring(session.living(), result, announce=record.announce)


async def bury_orphans(backstage: Backstage, key: SessionKey) -> None:
    """Results for a session that was closed for good: nobody is left to take them."""
    for entry in backstage.store.outbox.undelivered(key):
        result = backstage.store.runs.result(entry.run_id)
        if result is not None:
            await bury(backstage, key, result, "its session was closed for good before the result arrived")


async def _take_over(session: SessionActor, record: RunRecord, *, queued: bool) -> bool:
    """The run lives on in this process, as a new generation; its deadline, budget and lineage stay."""
    backstage = session.backstage
    generation = record.facts.generation + 1
    take = RestartRun(record.run_id, max(backstage.now(), record.facts.accepted_at), backstage.host, generation)
    (taken,) = await backstage.store.transaction(take)
    if not taken:
        return False
    packet, facts = inheriting(record.packet, backstage.store, backstage.config), record.facts
    if facts.deadline_at is not None:
        packet = packet.model_copy(update={"deadline_at": facts.deadline_at})
    run = LiveRun(packet, session, [], now=facts.accepted_at)
    run.durable = True
    run.generation = generation
    run.announce, run.is_follow_up = record.announce, record.is_follow_up
    run.started_at = facts.started_at
    run.usage, run.steps = record.usage, record.steps
    run.tally.add(backstage.store.runs.usage_below(packet.session_key) + record.usage)
    run.inherit_files(_touched(backstage, record))
    if not queued:
        await recover_below(run)
        # Last: it holds what has come in for the run just now.
        run.history = backstage.history_of(packet.session_key, pinned=1)
    session.begin(run, queued=queued)
    return True


async def recover_below(run: LiveRun) -> None:
    """The children of a run that is taken up: their ends, and what they had ended with, are there when it begins."""
    store, key = run.backstage.store, run.packet.session_key
    if not store.runs.children(key, unfinished=True) and not store.outbox.undelivered(key):
        return
    # From now on results also go into the run's live history, as soon as it has one.
    exchange = run.exchange = Exchange()
    nested = run.own_session()
    await recover(nested)
    for entry in store.outbox.undelivered(key):
        record, result = store.runs.get(entry.run_id), store.runs.result(entry.run_id)
        if record is not None and result is not None:
            await bring(nested, result, announce=record.announce)
    await exchange.settled()
    nested.arrived.clear()


async def _end_all(session: SessionActor, record: RunRecord) -> None:
    """An interrupted run and everything below it end here, deepest first; also below children that had finished."""
    backstage = session.backstage
    for below in backstage.store.runs.children(record.session_key):
        if below.parent_run_id == record.run_id:  # else an earlier run's of the same kept child
            await _end_all(session, below)
    if record.facts.ended_at is not None:
        return
    packet, facts = record.packet, record.facts
    now = max(backstage.now(), facts.accepted_at, facts.started_at or 0, facts.last_progress_at or 0)
    ending = ghost("host_lost", f"its host {record.host} stopped without bringing it to an end")
    said = [t.turn.text for t in backstage.store.transcripts.turns(record.session_key) if t.turn.role == "assistant"]
    full = said[-1] if said else ""
    output, condensation = condense(full, backstage.config.max_result_tokens, backstage.estimator)
    result = SubAgentResult(
        run_id=record.run_id,
        generation=facts.generation,
        session_key=record.session_key,
        parent_session_key=record.parent_session_key,
        label=record.label,
        end_reason=ending.reason,
        failure=ending.failure,
        partial=bool(output.strip()),
        output=output,
        condensation=condensation,
        recent_files=_touched(backstage, record),
        usage=record.usage,
        steps=record.steps,
        full_ref=backstage.full_reference(record.session_key, record.run_id),
        runtime_ms=0 if facts.started_at is None else now - facts.started_at,
        kept=packet.cleanup == "keep",
        is_follow_up=record.is_follow_up,
        **outputs_of(packet),
    )
    finish = FinishRun(result, now, full_output=None if output == full else full, deliver_to=session.key)
    await backstage.store.transaction(finish, point="terminal")


def _touched(backstage: Backstage, record: RunRecord) -> tuple[RecentFile, ...]:
    """The files a run had reported, or taken over from its children, before its host died; in touch order."""
    runs = backstage.store.runs
    told = [event for event in runs.events(record.run_id) if "path" in event.data]
    touched = [(event.at, RecentFile.model_validate(dict(event.data))) for event in told]
    for child in runs.children(record.session_key):
        merged_at, result = child.facts.delivered_at, runs.result(child.run_id)
        if merged_at is not None and result is not None:
            touched += [(merged_at, file) for file in result.recent_files]
    files: dict[str, RecentFile] = {}
    for _, file in sorted(touched, key=lambda pair: pair[0]):
        before = files.pop(file.path, file)
        files[file.path] = before if before.provenance == "changed" else file
    return tuple(files.values())
