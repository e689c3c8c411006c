"""What is said to a model and what it says back, whatever its wire format."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from understudy.protocol._value import value

if TYPE_CHECKING:
    from understudy.protocol.usage import Usage

Role = Literal["system", "user", "assistant", "tool"]
JsonValue: TypeAlias = "str | int | float | bool | list[JsonValue] | dict[str, JsonValue] | None"
JsonObject: TypeAlias = Mapping[str, JsonValue]

UNPARSED_ARGUMENTS = "__unparsed_arguments__"
"""The one argument of a `ToolCall` whose arguments were not a JSON object: what the model wrote instead.

A model that writes broken JSON must be told so. Its call therefore stays a call, with its id, which a toolbox
answers with an error result; dropping it would leave the answer without its tool call.
"""


LONGEST_ANSWER = 4 * 1024 * 1024
"""Characters of text and arguments in one answer; a model that does not stop there is stopped.

About a million tokens: several times what any model gives in one answer, and little enough for a host's memory.
"""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """The model wants a tool run."""

    id: str
    name: str
    arguments: JsonObject = field(default_factory=lambda: MappingProxyType({}))


@value
class Turn:
    """One entry of a history."""

    role: Role
    text: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as a model sees it."""

    name: str
    description: str
    parameters: JsonObject


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One call: the history, and the tools on offer."""

    turns: tuple[Turn, ...]
    tools: tuple[ToolSpec, ...] = ()
    model: str | None = None


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A piece of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class UsageReport:
    """What the call consumed."""

    usage: Usage


@dataclass(frozen=True, slots=True)
class Truncated:
    """The answer was cut off by a token limit: what came before is not the whole of it."""


ModelEvent: TypeAlias = TextDelta | ToolCall | UsageReport | Truncated
"""What a model's stream is made of; its end is the end of the answer."""


class Model(Protocol):
    """Anything that answers a request with a stream; an async generator method fits."""

    def complete(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """Answer once; closing the iterator gives the call up."""
