"""The proof that a process is dead, and everything that was below it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Needed: TypeAlias = Literal["none", "TERM", "KILL"]


@dataclass(frozen=True, slots=True)
class Death:
    """One process of the tree: the pid, when it began in the kernel's ticks, and the last signal it was sent."""

    pid: int
    started: int
    signal: Needed = "none"

    def __str__(self) -> str:
        return f"{self.pid}@{self.started} {self.signal}"


@dataclass(frozen=True, slots=True)
class Proof:
    """What became of a tree of processes; ``survivors`` are those the kernel would not let go."""

    dead: tuple[Death, ...]
    survivors: tuple[Death, ...] = ()

    def __str__(self) -> str:
        words = f"dead: {', '.join(map(str, self.dead)) or 'nobody'}"
        return f"{words}; alive: {', '.join(map(str, self.survivors))}" if self.survivors else words
