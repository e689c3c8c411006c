"""How a command says no: one sentence, and an exit code that means something."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """What the program's exit code says; docs/cli.md has the same table."""

    OK = 0
    NOT_SO = 1
    """What was asked for is not so, or did not work."""
    BAD_INPUT = 2
    """An argument, an option, or a file it names cannot be what it should be."""
    NOBODY_SERVES = 3
    """This needs a running server, and there is none."""


class Refusal(Exception):  # noqa: N818 - it is no error of the program
    """What is wrong and what to do about it, in one sentence."""

    def __init__(self, sentence: str, exit_code: Exit = Exit.NOT_SO) -> None:
        super().__init__(sentence)
        self.exit_code = exit_code
