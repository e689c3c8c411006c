"""A model that says what the test wrote down."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import TypeAlias

from understudy.actors.testing.gate import Gate
from understudy.protocol.model import ModelEvent, ModelRequest, TextDelta, ToolCall, UsageReport
from understudy.protocol.usage import Usage

Step: TypeAlias = str | ToolCall | Gate | Exception
"""Say this text; call this tool; wait at this gate; fail like this."""


class ScriptExhaustedError(AssertionError):
    """The model was called more often than the script has answers."""


class ScriptedModel:
    """Answers the first request with the first entry of the script, and so on; remembers every request.

    An entry is one step, or several in a row. Safe for one conversation at a time: give each child its own.

    Example:
        >>> model = ScriptedModel([ToolCall("1", "file_read", {"path": "a.py"}), "It says hello."])
    """

    def __init__(
        self,
        script: Sequence[Step | Sequence[Step]],
        *,
        usage: Usage = Usage(input_tokens=10, output_tokens=5),  # noqa: B008 - frozen
    ) -> None:
        self._script = [[entry] if isinstance(entry, str) or not isinstance(entry, Sequence) else list(entry)
                        for entry in script]  # fmt: skip
        self._usage = usage
        self.requests: list[ModelRequest] = []
        """What was asked, in order."""

    async def complete(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """The next entry of the script, as a stream."""
        self.requests.append(request)
        asked = len(self.requests)
        if asked > len(self._script):
            raise ScriptExhaustedError(f"the script has {len(self._script)} answers, this is request {asked}")
        for step in self._script[asked - 1]:
            if isinstance(step, Exception):
                raise step
            if isinstance(step, Gate):
                await step
            elif isinstance(step, str):
                yield TextDelta(step)
            else:
                yield step
        yield UsageReport(self._usage)
