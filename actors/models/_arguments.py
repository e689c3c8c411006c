"""The arguments of a tool call, which come in pieces of text."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from understudy.protocol.model import UNPARSED_ARGUMENTS, ToolCall

if TYPE_CHECKING:
    from understudy.protocol.model import JsonObject

MAX_ARGUMENTS = 16 * 1024 * 1024
"""More characters than any tool takes; what comes after is not kept, so the arguments do not parse."""

# Enough to see what went wrong, little enough to stay in the history.
_SHOWN = 2_000


class ArgumentsInPieces:
    """Collects the text of one call's arguments, in bounded memory."""

    def __init__(self, call_id: str, name: str) -> None:
        self.call_id = call_id
        self.name = name
        self._pieces: list[str] = []
        self._size = 0

    def add(self, piece: str) -> None:
        """The next piece."""
        room = MAX_ARGUMENTS - self._size
        self._pieces.append(piece[:room])
        self._size += len(piece)

    def call(self) -> ToolCall:
        """The whole call; arguments that are no JSON object are handed on as they were written."""
        return ToolCall(self.call_id, self.name, _parsed("".join(self._pieces), complete=self._size <= MAX_ARGUMENTS))


def _parsed(text: str, *, complete: bool) -> JsonObject:
    if not text.strip():  # a tool without arguments
        return {}
    try:
        parsed = json.loads(text) if complete else None
    except (ValueError, RecursionError):
        parsed = None
    return parsed if isinstance(parsed, dict) else {UNPARSED_ARGUMENTS: text[:_SHOWN]}
