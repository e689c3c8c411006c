"""The last events, numbered: one buffer for all who listen, each of them nothing but a place in it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from pydantic_core import PydanticSerializationError, to_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from understudy.protocol import Event
    from understudy.protocol.events import EventValue

CHUNK = 32_768
"""Bytes after which a chunk is full. What a listener who does not read leaves in memory is this and uvicorn's own."""
# Listeners at the same place get the same bytes; more places than this at once are not worth remembering.
_REMEMBERED = 64
_LONGEST_NUMBER = 15

# A plain tuple of plain values, which the garbage collector lets be: ten thousand objects that stay would cost the
# runtime more, collection by collection, than all listeners do.
Row: TypeAlias = "tuple[str, int, str, str | None, str | None, int, Mapping[str, EventValue]]"


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which events a listener asked for; empty is all of them."""

    names: frozenset[str] = frozenset()
    run_id: str | None = None
    session_key: str | None = None

    def __call__(self, row: Row) -> bool:
        """Whether an event is one."""
        name, _, session_key, run_id, *_ = row
        return (
            (not self.names or name in self.names)
            and (self.run_id is None or run_id == self.run_id)
            and (self.session_key is None or session_key == self.session_key)
        )


def _row(event: Event) -> Row:
    return event.name, event.at, event.session_key, event.run_id, event.parent_run_id, event.depth, event.data


def _json(told: Mapping[str, object]) -> bytes:
    try:
        return to_json(told)
    except PydanticSerializationError:
        return json.dumps(told).encode("ascii")  # half a character, which no UTF-8 can say: escaped


class Ring:
    """Events of one scope. The oldest make room for the newest, whether anybody has read them or not."""

    def __init__(self, epoch: str, size: int) -> None:
        self.next = 1
        """The number the next event will have."""
        self._epoch = epoch
        self._size = size
        self._rows: list[Row | None] = [None] * size
        # Written once for all, when the first listener needs it: most bursts are over before anybody reads all of it.
        self._written: list[bytes] = [b""] * size
        self._chunks: dict[tuple[int, Wanted], tuple[bytes, int]] = {}

    @property
    def oldest(self) -> int:
        """The number of the oldest event that is still here."""
        return max(1, self.next - self._size)

    def add(self, event: Event | None) -> None:
        """The newest, or one that was lost on the way."""
        slot = self.next % self._size
        self._rows[slot] = None if event is None else _row(event)
        self._written[slot] = b""
        self.next += 1

    def chunk(self, place: int, wanted: Wanted) -> tuple[bytes, int]:
        """What a listener at ``place`` is to be sent, perhaps nothing, and where it goes on."""
        known = self._chunks.get((place, wanted))
        if known is None:
            known = self._write(place, wanted)
            if known[1] > place:
                if len(self._chunks) >= _REMEMBERED:
                    self._chunks.clear()
                self._chunks[place, wanted] = known
        return known

    def _write(self, place: int, wanted: Wanted) -> tuple[bytes, int]:
        parts: list[bytes] = []
        room = CHUNK
        missed = max(0, self.oldest - place)
        place += missed
        while place < self.next and room > 0:
            row = self._rows[place % self._size]
            if row is None:
                missed += 1
            elif wanted(row):
                if missed:
                    parts.append(self.gap(missed, place))
                    missed = 0
                part = self._line(place, row)
                parts.append(part)
                room -= len(part)
            place += 1
        if missed:
            parts.append(self.gap(missed, place))
        return b"".join(parts), place

    def _line(self, number: int, row: Row) -> bytes:
        slot = number % self._size
        line = self._written[slot]
        if not line:
            name, at, session_key, run_id, parent_run_id, depth, data = row
            told = {
                "at": at,
                "session_key": session_key,
                "run_id": run_id,
                "parent_run_id": parent_run_id,
                "depth": depth,
                "data": dict(data),
            }
            line = b"id: %b\nevent: %b\ndata: %b\n\n" % (self.identify(number).encode(), name.encode(), _json(told))
            self._written[slot] = line
        return line

    def gap(self, missed: int | None, place: int) -> bytes:
        """Tells a listener that it lost events: how many at most, or None where that cannot be known."""
        return f'id: {self.identify(place - 1)}\nevent: gap\ndata: {{"missed": {json.dumps(missed)}}}\n\n'.encode(
            "ascii"
        )

    def here(self, words: str, place: int) -> bytes:
        """A comment, which also tells where the listener is: also one who hears nothing can go on from there."""
        return f": {words}\nid: {self.identify(place - 1)}\n\n".encode("ascii")

    def identify(self, number: int) -> str:
        """An event's name on the wire. It says which server counts: another one's numbers are none of these."""
        return f"{self._epoch}-{number}"

    def place_after(self, event_id: str) -> int | None:
        """Where a listener goes on who has seen ``event_id``; None when that is not one of ours."""
        epoch, _, number = event_id.rpartition("-")
        if epoch != self._epoch or not number.isdecimal() or not number.isascii() or len(number) > _LONGEST_NUMBER:
            return None
        return int(number) + 1 if int(number) < self.next else None
