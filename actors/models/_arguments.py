"""The arguments of a tool call, which come in pieces of text."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING

from understudy.protocol.model import UNPARSED_ARGUMENTS, ToolCall

if TYPE_CHECKING:
    from understudy.actors.models._room import Room
    from understudy.protocol.model import JsonObject

# Enough to see what went wrong, little enough to stay in the history.
_SHOWN = 2_000


class ArgumentsInPieces:
    """Collects the text of one call's arguments, in what room its answer has."""

    def __init__(self, call_id: str, name: str, room: Room) -> None:
        room.take_call(call_id, name)
        self.call_id = call_id
        self.name = name
        self._room = room
        self._text = io.StringIO()

    def add(self, piece: str) -> None:
        """The next piece."""
        self._room.take(piece)
        self._text.write(piece)

    def call(self) -> ToolCall:
        """The whole call; arguments that are no JSON object are handed on as they were written."""
        return ToolCall(self.call_id, self.name, _parsed(self._text.getvalue()))


def _parsed(text: str) -> JsonObject:
    if not text.strip():  # a tool without arguments
        return {}
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        parsed = None
    return parsed if isinstance(parsed, dict) else {UNPARSED_ARGUMENTS: text[:_SHOWN]}
