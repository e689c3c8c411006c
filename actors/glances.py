"""One look at the disk for all who want to know the same in the same turn of the event loop."""

from __future__ import annotations

import os.path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio


class Glances:
    """Remembers what was seen until the loop's next turn: a hundred children that begin together look once."""

    __slots__ = ("_loop", "_seen")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._seen: dict[str, bool] = {}

    def exists(self, path: str) -> bool:
        """Whether there is something of this name, be it a link that leads nowhere."""
        if not self._seen:
            self._loop.call_soon(self._seen.clear)
        seen = self._seen.get(path)
        if seen is None:
            seen = self._seen[path] = os.path.lexists(path)
        return seen
