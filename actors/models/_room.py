"""How much an answer may hold: a model that never stops must not take its host's memory with it."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any

from understudy.actors.models.errors import ProviderError
from understudy.protocol.model import LONGEST_ANSWER

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

# What a call without arguments counts for, with all that comes of it: a thousand of them are an answer, no more.
_CALL_ITSELF = 4096

_FIRST_ERROR_STATUS = 400

# What ends an event of a stream.
_BLANK_LINES = (b"\n\n", b"\r\n\r\n", b"\r\r")
_LONGEST_BLANK = 4


class Room:
    """What is left for one answer."""

    __slots__ = ("_left", "_who")

    def __init__(self, who: str) -> None:
        self._left = LONGEST_ANSWER
        self._who = who

    def take(self, *said: str) -> None:
        """Make room for what was said; where there is none left, the answer is a `ProviderError`."""
        for text in said:
            self._left -= len(text)
        if self._left < 0:
            raise runaway(self._who)

    def take_call(self, *said: str) -> None:
        """The same for the beginning of a tool call."""
        self._left -= _CALL_ITSELF
        self.take(*said)


def runaway(who: str) -> ProviderError:
    """An answer that does not end."""
    return ProviderError(
        f"{who}: runaway: the answer was cut off because it is longer than {LONGEST_ANSWER} characters",
        kind="runaway",
    )


async def bound_events(response: Any, *, who: str) -> None:
    """A response hook of the SDKs' HTTP client: no event of the stream is longer than an answer may be.

    The SDKs collect an event, however long, before anybody sees any of it. Of an error's body the beginning is enough.
    """
    whole = response.aiter_bytes
    cut = _beginning if response.status_code >= _FIRST_ERROR_STATUS else partial(_events, who=who)
    # On this one response. Its decoded bytes, so that a compressed body counts by what it becomes.
    response.aiter_bytes = partial(cut, whole)


async def _events(whole: Callable[..., Any], *args: Any, who: str) -> AsyncGenerator[bytes, None]:
    size, before = 0, b""
    async with contextlib.aclosing(whole(*args)) as parts:
        async for part in parts:
            # Together with the end of the last part: the blank line may be in two.
            seen = before + part
            end = max(seen.rfind(blank) for blank in _BLANK_LINES)
            size = size + len(part) if end < 0 else len(seen) - end
            if size > LONGEST_ANSWER:
                raise runaway(who)
            before = seen[-_LONGEST_BLANK:]
            yield part


async def _beginning(whole: Callable[..., Any], *args: Any) -> AsyncGenerator[bytes, None]:
    left = LONGEST_ANSWER
    async with contextlib.aclosing(whole(*args)) as parts:
        async for part in parts:
            yield part[:left]
            left -= len(part)
            if left < 0:
                return
