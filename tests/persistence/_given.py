"""What the store's tests start from: a store, an open session, a run at any stage of its life."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from understudy.persistence import Store
from understudy.persistence.operations import (
    AcceptRun,
    AppendTurns,
    FinishRun,
    MergeResult,
    OpenSession,
    StartRun,
)
from understudy.protocol import EndReason, Failure, RunId, SessionKey, SpawnPacket, SubAgentResult
from understudy.protocol.model import Turn

if TYPE_CHECKING:
    from pathlib import Path

    from understudy.persistence.operations import Operation

MAIN = SessionKey("agent:atlas:main")
HOST = "host-1"


class Wall:
    """A wall clock that stands where it was put."""

    def __init__(self, now: int = 1_000) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now


def a_store(folder: Path, **options: Any) -> Store:
    """The store of a test, a file in ``folder``; opening it again finds what was committed."""
    return Store.open(folder / "store.db", **{"wall_ms": Wall(), **options})


def commit(store: Store, *operations: Operation) -> tuple[Any, ...]:
    """Commit together; gives the answers."""
    return store.transaction(*operations).result(timeout=30)


def open_session(store: Store, key: str = MAIN, at: int = 1, **options: Any) -> SessionKey:
    """A session that is there."""
    session_key = SessionKey(key)
    commit(store, OpenSession(session_key, at=at, **options))
    return session_key


def say(store: Store, *texts: str, key: str = MAIN, at: int = 2) -> None:
    """What a user said, a turn each, in one commit."""
    commit(store, AppendTurns(SessionKey(key), at, tuple(Turn("user", text) for text in texts)))


def a_packet(run_id: str, **fields: Any) -> SpawnPacket:
    """What a child of the main session gets."""
    usual = {
        "session_key": SessionKey(f"agent:atlas:sub:{run_id}"),
        "parent_session_key": MAIN,
        "root_session_key": MAIN,
        "depth": 1,
        "max_depth": 3,
        "task": "look around",
        "label": "scout",
        "runner": "default",
        "workspace_dir": "/w",
        "cwd": "/w",
        "max_steps": 5,
        "timeout_ms": 60_000,
    }
    return SpawnPacket(run_id=RunId(run_id), **{**usual, **fields})


def accept(store: Store, run_id: str, at: int = 10, **fields: Any) -> SpawnPacket:
    """An accepted run, its session and its parent's."""
    packet = a_packet(run_id, **fields)
    commit(
        store,
        OpenSession(packet.parent_session_key, at=1),
        OpenSession(packet.session_key, at=at, parent_session_key=packet.parent_session_key),
        AcceptRun(packet, at, HOST),
    )
    return packet


def a_result(packet: SpawnPacket, output: str = "found it", **fields: Any) -> SubAgentResult:
    """How that run ended: completed, unless ``fields`` say otherwise."""
    usual = {"end_reason": EndReason.COMPLETED, "output": output}
    return SubAgentResult(
        run_id=packet.run_id,
        session_key=packet.session_key,
        parent_session_key=packet.parent_session_key,
        label=packet.label,
        **{**usual, **fields},
    )


def a_failure(message: str) -> dict[str, Any]:
    """The fields of a result that failed."""
    return {"end_reason": EndReason.FAILED, "failure": Failure(kind="runner_crash", message=message)}


def finish(store: Store, packet: SpawnPacket, at: int = 20, *, full: str | None = None, **fields: Any) -> None:
    """The run started and ended; its result waits to be delivered."""
    commit(store, StartRun(packet.run_id, at, HOST), FinishRun(a_result(packet, **fields), at, full_output=full))


def deliver(store: Store, packet: SpawnPacket, at: int = 30) -> None:
    """The parent took the result in."""
    commit(store, MergeResult(packet.run_id, packet.parent_session_key, at))


def a_delivered_run(store: Store, run_id: str, at: int = 20, *, full: str | None = None, **fields: Any) -> SpawnPacket:
    """A run from its acceptance to its delivery."""
    packet = accept(store, run_id, **fields)
    finish(store, packet, at, full=full)
    deliver(store, packet, at + 10)
    return packet
