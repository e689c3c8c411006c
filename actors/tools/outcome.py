"""What a tool call comes to: text for the model, and receipts for the working context."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from understudy.protocol.truncate import truncate

if TYPE_CHECKING:
    from understudy.protocol import Receipt

MAX_CHARACTERS = 100_000
"""The most a tool may say: about 25,000 tokens, more than a model should be handed at once."""


class ToolError(Exception):
    """A tool cannot do what it was asked; its message goes to the model as it stands."""


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """The end of one tool call. A tool may return one itself; whatever else it returns becomes its text."""

    text: str
    receipts: tuple[Receipt, ...] = ()
    is_error: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", _tellable(self.text))


def _tellable(text: str) -> str:
    """``text`` as it can be stored and sent: encodable, and no longer than `MAX_CHARACTERS`."""
    text = truncate(text, MAX_CHARACTERS)
    try:
        text.encode()
    except UnicodeEncodeError:  # lone surrogates, as in file names that are not UTF-8
        return text.encode(errors="backslashreplace").decode()
    return text
