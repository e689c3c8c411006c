"""All there is to know of a CLI before it runs: a plain value, so that anybody can describe one more."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, TypeAlias

from understudy.protocol import ConfigError
from understudy.protocol._explain import nearest

if TYPE_CHECKING:
    from understudy.actors.runners.cli.stream import Stream

Values: TypeAlias = Mapping[str, str]

_PLACEHOLDER = re.compile(r"\{(\w*)\}")
_KNOWN = ("prompt", "session", "system", "model")
# Linux takes 128 KiB for one argument; the rest is left for the programs that wrap the CLI.
_LONGEST_ARGUMENT = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CliProfile:
    """How to run a CLI and how to read it.

    Arguments may hold ``{prompt}``, ``{session}``, ``{system}`` and ``{model}``; what stands in for them is never
    looked through again. A profile without ``{system}`` has the rules put before the first prompt.

    Example:
        >>> from understudy.actors.runners.cli import PlainText
        >>> CliProfile(name="echo", command="cat", fresh=("-",), stream=PlainText).prompt
        'stdin'
    """

    name: str
    command: str
    fresh: tuple[str, ...]
    """Arguments of a new conversation."""
    stream: Callable[..., Stream]
    """Makes what reads one process's output; takes ``spent``."""
    resume: tuple[str, ...] | None = None
    """Arguments that continue the conversation ``{session}``; None where the CLI cannot."""
    model: tuple[str, ...] = ()
    """Added where the spawn names a model."""
    prompt: Literal["stdin", "argv"] = "stdin"
    """How it takes the prompt. Standard input holds any text of any length, and no list of processes shows it."""
    install: str = ""
    """What a person types to get it."""
    needs: tuple[str, ...] = ()
    """Variables, beside those that every process gets, that say where it keeps its things; passed on where set."""
    credentials: tuple[str, ...] = ()
    """Variables its credentials usually come in. Never passed on unless the host names them in ``pass_env``."""
    env: Values = field(default_factory=lambda: MappingProxyType({}), repr=False)
    """Variables it always gets."""
    unknown_session: str | None = None
    """What it says when it does not know the conversation it is to resume."""
    grace_seconds: float = 3.0
    """How long it may take to end after it was asked to."""
    quiet_seconds: float = 300.0
    """How long it may say nothing while no tool runs."""
    quiet_resumed_seconds: float = 180.0
    """The same where it resumes: what it needs is there already."""
    max_line_bytes: int = 8 * 2**20
    max_output_bytes: int = 256 * 2**20

    def __post_init__(self) -> None:
        """A profile that cannot work is refused in one sentence."""
        for which, arguments in (("fresh", self.fresh), ("resume", self.resume or ()), ("model", self.model)):
            for name in _PLACEHOLDER.findall(" ".join(arguments)):
                if name not in _KNOWN:
                    raise self._wrong(f"{which} has an unknown placeholder {{{name}}}{nearest(name, _KNOWN)}")
        if not self.command.strip():
            raise self._wrong("command is empty: name the program")
        if self.resume is not None and not _holds(self.resume, "session"):
            raise self._wrong("resume never says {session}: it could not tell one conversation from another")
        for which in ("fresh", "resume"):
            chosen: tuple[str, ...] | None = getattr(self, which)
            if chosen is not None and _holds(chosen, "prompt") != (self.prompt == "argv"):
                what = "never says {prompt}" if self.prompt == "argv" else "says {prompt}"
                raise self._wrong(f"{which} {what}, but prompt = {self.prompt!r}")
        for which in ("grace_seconds", "quiet_seconds", "quiet_resumed_seconds", "max_line_bytes", "max_output_bytes"):
            if getattr(self, which) <= 0:
                raise self._wrong(f"{which} = {getattr(self, which)!r} is not allowed: use a number above 0")

    def _wrong(self, what: str) -> ConfigError:
        return ConfigError(f"CLI profile {self.name!r}: {what}")

    @property
    def takes_system(self) -> bool:
        """Whether it takes rules apart from the prompt."""
        return _holds(self.fresh, "system")

    def arguments(self, *, prompt: str, system: str, session: str | None, model: str | None) -> list[str]:
        """The command line after the program's name."""
        chosen = self.fresh if session is None else self.resume or ()
        values = {"prompt": as_argument(prompt), "system": system, "session": session or "", "model": model or ""}
        return [
            _PLACEHOLDER.sub(lambda found: values[found[1]], argument)
            for argument in (*chosen, *(self.model if model is not None else ()))
        ]


def as_argument(prompt: str) -> str:
    """``prompt`` as one argument that no program takes for an option."""
    prompt = prompt.replace("\0", "\ufffd")
    return f"\n{prompt}" if prompt.startswith("-") else prompt


def too_long(arguments: list[str]) -> bool:
    """Whether the system would refuse one of the arguments."""
    return any(len(argument.encode(errors="replace")) > _LONGEST_ARGUMENT for argument in arguments)


def _holds(arguments: tuple[str, ...], name: str) -> bool:
    return any(f"{{{name}}}" in argument for argument in arguments)
