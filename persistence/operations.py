"""What can be written: each operation is a value, and a transaction is a handful of them.

Within one transaction the operations take effect together, in the order in which they are defined in this
module: a session is there before its runs, a run before its end, an end before its merge, then turns, the
compaction of the older ones, and last the checkpoint that covers them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from understudy.protocol._value import value

if TYPE_CHECKING:
    from understudy.protocol import Event, RunId, SessionKey, SpawnPacket, SubAgentResult, Usage, WorkingContext
    from understudy.protocol.model import Turn

Visibility = Literal["isolated", "shared"]
CheckpointTrigger = Literal["periodic", "pre_compaction", "session_end", "explicit"]

CHECKPOINTS_KEPT = 20
"""Of each session; older ones go with the commit that adds one."""


@value
class HostStarted:
    """A host process begins an incarnation; ``pid`` and ``process_started`` tell it from a later namesake."""

    host: str
    pid: int
    process_started: int
    at: int


@value
class HostHeartbeat:
    """The host is alive."""

    host: str
    at: int


@value
class HostStopped:
    """The host stopped, or was found dead: it holds no session from now on."""

    host: str
    at: int


@value
class OpenSession:
    """Make sure that a session exists. One that is there already stays as it is, ``created_at`` above all."""

    session_key: SessionKey
    at: int
    agent_id: str = "default"
    visibility: Visibility = "isolated"
    parent_session_key: SessionKey | None = None
    root_session_key: SessionKey | None = None
    depth: int = 0
    runner: str | None = None
    workspace_dir: str | None = None
    cwd: str | None = None
    harness: str | None = None
    project: str | None = None
    title: str | None = None


@value
class ClaimSession:
    """Hold a session for ``host``. Answers None, or the incarnation of the live host that holds it.

    A holder that has stopped, or whose last heartbeat is before ``stale_before``, holds nothing.
    """

    session_key: SessionKey
    host: str
    stale_before: int


@value
class ReleaseSession:
    """Let a session go, if ``host`` holds it. Answers whether it did."""

    session_key: SessionKey
    host: str


@value
class CompleteSession:
    """The session is over. The first one says when: answers whether this was the first."""

    session_key: SessionKey
    at: int


@value
class SetLineage:
    """Whose sub-agent a session is, told after it was opened; ``inferred`` while that is only the best guess.

    Answers False where there is no such session. Of our own spawns it is recorded when they are accepted.
    """

    session_key: SessionKey
    parent_session_key: SessionKey
    root_session_key: SessionKey
    depth: int
    inferred: bool = False


@value
class SetObjective:
    """What the session is for, from now on. Answers False where there is no such session."""

    session_key: SessionKey
    objective: str


@value
class AcceptRun:
    """A spawn is accepted: from this commit on it will have exactly one result.

    ``started`` says that it has begun too, as a spawn that need not wait does; its deadline is the packet's.
    Raises DuplicateRunError where the parent session has accepted a run under the same idempotency key.
    """

    packet: SpawnPacket
    at: int
    host: str
    queued: bool = False
    announce: bool = False
    is_follow_up: bool = False
    idempotency_key: str | None = None
    digest: str | None = None
    started: bool = False


@value
class StartRun:
    """The run has begun on ``host``. Answers False where it has started or ended before."""

    run_id: RunId
    at: int
    host: str
    generation: int = 1
    deadline_at: int | None = None


@value
class RestartRun:
    """Take an unfinished run over as ``generation``, one above its last. Answers False where that came too late.

    The deadline, the start and what was used stay: a restart buys no time and no budget.
    """

    run_id: RunId
    at: int
    host: str
    generation: int


@value
class Progress:
    """The run did something; ``usage`` and ``steps``, where given, are its totals so far."""

    run_id: RunId
    at: int
    generation: int = 1
    usage: Usage | None = None
    steps: int | None = None


@value
class RequestCancel:
    """Somebody wants the run to end. The first one counts: answers whether this was the first."""

    run_id: RunId
    at: int
    reason: str


@value
class FinishRun:
    """The run's end, its full result and its outbox entry. Answers whether this end won.

    The first committed end of the run's current generation wins; any later one is recorded as late and
    changes nothing. ``deliver_to`` defaults to the parent session. ``merge`` is carried out with the end, if that
    wins: a parent that can take the result in at once needs no second commit for it.
    """

    result: SubAgentResult
    at: int
    full_output: str | None = None
    deliver_to: SessionKey | None = None
    merge: MergeResult | None = None


@value
class CondenseResult:
    """A model has condensed the result of a run that is over: its shorter form, and what that cost.

    Answers False, and changes nothing, where the run ended otherwise, as another generation, or was delivered before.
    What it said stays: the output that is replaced is kept as the full one where that was the same.
    """

    result: SubAgentResult


@value
class MergeResult:
    """The parent takes the result in: its working context, the narrative turn and the delivery, together.

    Answers whether it was merged now; False (and nothing is written) when it had been delivered before.
    """

    run_id: RunId
    session_key: SessionKey
    at: int
    generation: int = 1
    context: WorkingContext | None = None
    turns: tuple[Turn, ...] = ()


@value
class DeliveryFailed:
    """An attempt to deliver failed; the next is due at ``next_attempt_at``."""

    run_id: RunId
    error: str
    next_attempt_at: int


@value
class DeadLetter:
    """Something could not be delivered. Answers its number.

    With a ``run_id`` the run's outbox entry is set aside until it is replayed; it still counts as undelivered.
    """

    at: int
    reason: str
    payload: str
    session_key: SessionKey | None = None
    run_id: RunId | None = None


@value
class ReplayDeadLetter:
    """Put a dead letter back on the road. Answers False where it was replayed before, or does not exist."""

    dead_letter_id: int
    at: int


@value
class SaveContext:
    """The session's working context from now on."""

    session_key: SessionKey
    at: int
    context: WorkingContext


@value
class RecordEvent:
    """Keep an event for the run's history."""

    event: Event


@value
class DeleteRun:
    """Forget a finished and delivered run. Answers whether it was forgotten.

    Its exported file is not the database's: ``store.results.forget`` takes both.
    """

    run_id: RunId


@value
class MarkExported:
    """The result's file was written. Answers False where the run was swept or forgotten: the file must go."""

    run_id: RunId
    at: int


@value
class MarkSwept:
    """Retention removed the result's file. Answers whether this was the first time."""

    run_id: RunId
    at: int


@value
class SetIngestOffset:
    """How far a transcript file has been read; ``anchor`` is a fingerprint of what lies before.

    Raises IngestConflictError unless ``before``, None for a new file, was offset and anchor until now.
    """

    path: str
    session_key: SessionKey
    offset: int
    anchor: str
    before: tuple[int, str] | None


@value
class AppendTurns:
    """New turns of a session, in order."""

    session_key: SessionKey
    at: int
    turns: tuple[Turn, ...]
    run_id: RunId | None = None


@value
class CompactHistory:
    """From now on the session's history is ``summary`` and its newest ``kept`` turns. No turn is touched.

    Answers the number from which on turns are kept.
    """

    session_key: SessionKey
    at: int
    summary: str
    kept: int


@value
class SaveCheckpoint:
    """What a session is about, as of its last stored turn. Answers the checkpoint's number.

    ``entities`` and ``constraints`` that are left out stay what they were in the one before; only the newest
    `CHECKPOINTS_KEPT` of a session are kept.
    """

    session_key: SessionKey
    at: int
    digest: str
    trigger: CheckpointTrigger = "explicit"
    entities: tuple[str, ...] | None = None
    constraints: tuple[str, ...] | None = None


Operation: TypeAlias = (
    HostStarted
    | HostHeartbeat
    | HostStopped
    | OpenSession
    | ClaimSession
    | ReleaseSession
    | CompleteSession
    | SetLineage
    | SetObjective
    | AcceptRun
    | StartRun
    | RestartRun
    | Progress
    | RequestCancel
    | FinishRun
    | CondenseResult
    | MergeResult
    | DeliveryFailed
    | DeadLetter
    | ReplayDeadLetter
    | SaveContext
    | RecordEvent
    | DeleteRun
    | MarkExported
    | MarkSwept
    | SetIngestOffset
    | AppendTurns
    | CompactHistory
    | SaveCheckpoint
)

Answer: TypeAlias = bool | int | str | None
