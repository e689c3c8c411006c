"""Events on their way to listeners: written once, paced, and never at the cost of the runtime."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
from typing import TYPE_CHECKING

from understudy.actors.clock import sleep
from understudy.gateway.http.ring import Ring, Wanted
from understudy.gateway.http.turns import Turns

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from understudy.actors import AsyncRuntime
    from understudy.actors.events import Subscription
    from understudy.protocol import Event

REPLAY = 10_000
"""So many events are kept for who comes back: a disconnect shorter than that loses nothing."""
HEARTBEAT_SECONDS = 15.0
LINGER_SECONDS = 300.0
"""So long events are still taken in when nobody listens any more: events that nobody hears of cost nothing."""
MOST_LISTENERS = 1_000
# Between two looks at the events.
_PAUSE_SECONDS = 0.02
# Waits for the feed while it pauses: more than a runtime can emit meanwhile.
_BACKLOG = 100_000
_LONGEST_TEXT = 4_000
_MOST_OWNERS = 10_000


class Feed:
    """All events of a runtime for all listeners, and each bound agent's own for its own."""

    def __init__(
        self,
        runtime: AsyncRuntime,
        *,
        replay: int = REPLAY,
        heartbeat: float = HEARTBEAT_SECONDS,
        linger: float = LINGER_SECONDS,
    ) -> None:
        self._runtime = runtime
        self._replay = replay
        self._heartbeat = heartbeat
        self._linger = linger
        self._epoch = ""
        self._pumping: asyncio.Task[None] | None = None
        self._alone = 0.0
        self._rings: dict[str | None, Ring] = {}
        self._owners: dict[str, str] = {}
        self._beats = 0
        self._missed = 0
        self._turns = Turns(runtime.clock)
        self.listeners = 0
        self.closed = asyncio.Event()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Be there for listeners; ends with every one of them told."""
        working = [asyncio.ensure_future(work) for work in (self._beat(), self._turns.give())]
        try:
            yield
        finally:
            self.close()
            self._rest()
            for task in working:
                task.cancel()
            await asyncio.gather(*working, return_exceptions=True)

    def close(self) -> None:
        """The end of every stream."""
        self.closed.set()
        self._turns.end()

    async def listen(self, agent_id: str | None, last_seen: str | None, wanted: Wanted) -> AsyncGenerator[bytes]:
        """What a listener is to be sent, one chunk after the other, until the feed is closed.

        ``agent_id`` is whose events it may hear, None for everybody's; ``last_seen`` is the id it goes on from.
        """
        self._attend()
        ring = self._ring(agent_id)
        place = ring.next if last_seen is None else ring.place_after(last_seen)
        beats = self._beats
        self.listeners += 1
        try:
            if place is None:
                place = ring.oldest
                yield ring.gap(None, place)
            yield ring.here("welcome", place)
            while not self.closed.is_set():
                chunk, place = ring.chunk(place, wanted)
                if not chunk and beats != self._beats:
                    chunk = ring.here("heartbeat", place)
                beats = self._beats
                if chunk:
                    yield chunk
                if place < ring.next:
                    self._turns.call()
                await self._turns.wait()
        finally:
            self.listeners -= 1

    def _attend(self) -> None:
        """Somebody listens: take events in, unless that is done already."""
        if self._pumping is None:
            # What happened meanwhile is in none of the rings, so that the numbers begin anew.
            self._epoch = os.urandom(4).hex()
            self._rings = {}
            self._ring(None)
            self._missed = 0
            self._pumping = asyncio.ensure_future(self._pump(self._runtime.events(backlog=_BACKLOG)))

    def _rest(self) -> None:
        if self._pumping is not None:
            self._pumping.cancel()
            self._pumping = None

    def _ring(self, agent_id: str | None) -> Ring:
        ring = self._rings.get(agent_id)
        if ring is None:
            ring = self._rings[agent_id] = Ring(self._epoch, self._replay)
        return ring

    async def _pump(self, subscription: Subscription) -> None:
        with subscription:
            async for event in subscription:
                self._take(event)
                for other in subscription.poll():
                    self._take(other)
                self._lose(subscription.missed)
                self._turns.call()
                await sleep(self._runtime.clock, _PAUSE_SECONDS)

    async def _beat(self) -> None:
        """Show every so often that the stream lives: to a listener, and to whatever stands between."""
        while True:
            await sleep(self._runtime.clock, self._heartbeat)
            self._beats += 1
            self._turns.call()
            self._alone = 0.0 if self.listeners else self._alone + self._heartbeat
            if self._alone >= self._linger:
                self._rest()

    def _take(self, event: Event) -> None:
        text = event.data.get("text")
        if isinstance(text, str):
            # What a child says of its progress is the one thing here that it words itself.
            cut = self._runtime.store.redactor.text(text)[:_LONGEST_TEXT]
            event = dataclasses.replace(event, data={**event.data, "text": cut})
        self._rings[None].add(event)
        if len(self._rings) > 1:
            ring = self._rings.get(self._owner(event.session_key) or None)
            if ring is not None and ring is not self._rings[None]:
                ring.add(event)

    def _lose(self, missed: int) -> None:
        """The runtime was faster than the feed; whoever listens is told, at most of so many."""
        lost, self._missed = missed - self._missed, missed
        for ring in self._rings.values():
            for _ in range(min(lost, self._replay)):
                ring.add(None)

    def _owner(self, session_key: str) -> str | None:
        """Whose session it is, which never changes; None for what is no session."""
        owner = self._owners.get(session_key)
        if owner is None:
            record = self._runtime.store.sessions.get(session_key)
            if record is None:
                return None
            if len(self._owners) >= _MOST_OWNERS:
                self._owners.clear()
            owner = self._owners[session_key] = record.agent_id
        return owner
