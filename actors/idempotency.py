"""Same key, same request: the same run. Same key, another request: refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from understudy.protocol import Rejection, RunId

if TYPE_CHECKING:
    from understudy.actors.live_run import LiveRun
    from understudy.persistence import Ledger
    from understudy.protocol import SessionKey, Spawn


class SeenKeys:
    """The idempotency keys of one session: those on their way in memory, all others in the store."""

    def __init__(self, store: Ledger, session_key: SessionKey) -> None:
        self._store = store
        self._session_key = session_key
        self._live: dict[str, LiveRun] = {}

    def remember(self, run: LiveRun, spawn: Spawn) -> None:
        """``run`` answers ``spawn``, and every later one like it."""
        if spawn.idempotency_key is not None:
            run.idempotency_key, run.digest = spawn.idempotency_key, spawn.digest()
            self._live[spawn.idempotency_key] = run

    def forget(self, run: LiveRun) -> None:
        """From now on the store knows it, or nobody does."""
        if run.idempotency_key is not None:
            self._live.pop(run.idempotency_key, None)

    def find(self, spawn: Spawn) -> LiveRun | RunId | Rejection | None:
        """The run that was asked for before: alive, or by name; or why the key cannot be used."""
        key = spawn.idempotency_key
        if key is None:
            return None
        run = self._live.get(key)
        if run is not None:
            return run if run.digest == spawn.digest() else conflict(key, run.packet.run_id)
        record = self._store.runs.by_idempotency_key(self._session_key, key)
        if record is None:
            return None
        return record.run_id if record.digest == spawn.digest() else conflict(key, record.run_id)


def conflict(key: str, run_id: str) -> Rejection:
    """The key stands for something else."""
    return Rejection(
        reason="duplicate_conflict",
        message=f"idempotency key {key!r} was used for another request, run {run_id}: use a new key",
        current=key,
    )
