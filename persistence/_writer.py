"""The one writer: a thread that drains whatever is queued into one commit, and never waits for more."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Protocol

from understudy.persistence._commit import Pending, settle
from understudy.persistence.errors import StoreClosedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from understudy.persistence._commit import Commit, Points
    from understudy.persistence._group import GroupCommit
    from understudy.persistence.operations import Operation

# A group this large has long paid for its COMMIT; beyond it only the first callers' wait would grow.
_LARGEST_GROUP = 1024


class BusySignal(Protocol):
    """Told when work is under way, so that a manual clock does not run ahead of it. Any clock is one."""

    def work_started(self) -> None:
        """A transaction was queued."""

    def work_finished(self) -> None:
        """It is decided, and its callers were woken. Called from any thread."""


class InlineWriter:
    """Commits in the calling thread, without a thread of its own: nothing ever happens behind its back.

    On an event loop, what one tick of the loop hands in is committed together at the tick's end; a read, or
    ``Commit.result``, brings that forward, so nobody can tell the difference. Elsewhere each transaction is
    committed before ``put`` returns.
    """

    def __init__(self, group: GroupCommit) -> None:
        self._group = group
        self._lock = threading.Lock()
        self._turn = threading.RLock()
        self._queue: list[Pending] = []
        self._due_on: asyncio.AbstractEventLoop | None = None
        self._closed = False

    @property
    def turn(self) -> threading.RLock:
        """Who holds it uses the connection: a read waits for the write that is under way."""
        return self._turn

    def put(self, operations: Sequence[Operation], points: Points) -> Commit:
        """Commit, or note for the end of the tick."""
        pending = Pending(operations, points, self._lock, self.flush)
        with self._turn:
            if self._closed:
                raise _closed()
            self._queue.append(pending)
            loop = _running_loop()
            if loop is None:
                self.flush()
            elif loop is not self._due_on:
                # Not only for the first in the queue: the loop that one came from may be gone with its tick.
                self._due_on = loop
                loop.call_soon(self.flush)
        return pending

    def flush(self) -> None:
        """Commit what was noted."""
        with self._turn:
            self._due_on = None
            if self._queue:
                group, self._queue = self._queue, []
                settle(self._group.commit(group), self._lock)

    def close(self) -> None:
        """Commit what was noted, then let the connection go."""
        with self._turn:
            self.flush()
            self._closed = True
            self._group.close()


class ThreadWriter:
    """Commits in a thread of its own, as many transactions at once as have gathered meanwhile."""

    def __init__(self, group: GroupCommit, busy: BusySignal | None) -> None:
        self._group = group
        self._busy = busy
        self._lock = threading.Lock()
        self._queue: list[Pending] = []
        self._wake = threading.Event()
        self._asleep = False
        self._closed = False
        # A daemon: a host that forgets to close must still be able to exit. What was acknowledged is on disk.
        self._thread = threading.Thread(target=self._run, name="understudy-writer", daemon=True)
        self._thread.start()

    def put(self, operations: Sequence[Operation], points: Points) -> Commit:
        """Queue a transaction; it is committed as soon as the writer is free."""
        pending = Pending(operations, points, self._lock, None)
        with self._lock:
            if self._closed:
                raise _closed()
            if self._busy is not None:
                self._busy.work_started()
            self._queue.append(pending)
            # The event is only touched when the writer sleeps: under load a put is an append.
            if self._asleep:
                self._asleep = False
                self._wake.set()
        return pending

    def close(self) -> None:
        """Commit what is queued, then stop. A second call waits for the first."""
        with self._lock:
            self._closed = True
            self._asleep = False
            self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        group: list[Pending] | None = []
        try:
            while (group := self._next()) is not None:
                settle(self._group.commit(group), self._lock)
                if self._busy is not None:
                    for _ in group:
                        self._busy.work_finished()
        except BaseException as error:
            self._give_up(group or [], error)
            raise
        finally:
            self._group.close()

    def _give_up(self, group: list[Pending], error: BaseException) -> None:
        """Nothing here should raise; if something does, nobody may wait for a writer that is no more."""
        with self._lock:
            self._closed = True
            left = [pending for pending in (*group, *self._queue) if not pending.done]
            self._queue = []
        told = StoreClosedError(f"the writer has ended ({error!r}): open the store again")
        settle([(pending, told) for pending in left], self._lock)

    def _next(self) -> list[Pending] | None:
        """Whatever is queued; None when the store was closed and everything is done."""
        while True:
            with self._lock:
                if self._queue:
                    group, self._queue = self._queue[:_LARGEST_GROUP], self._queue[_LARGEST_GROUP:]
                    return group
                if self._closed:
                    return None
                self._asleep = True
                self._wake.clear()
            self._wake.wait()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _closed() -> StoreClosedError:
    return StoreClosedError("the store is closed: open it again, or finish the work before closing it")
