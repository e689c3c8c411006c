"""A measured ratio, and how ratios are taken: systems interleaved in one run, medians of the runs' ratios."""

from __future__ import annotations

import gc
import resource
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass(frozen=True, slots=True)
class Ratio:
    """One line of the table: what was measured, and the bar it is held against."""

    name: str
    value: float
    bar: float
    at_most: bool = True
    note: str = ""

    @property
    def met(self) -> bool:
        """Whether the bar holds."""
        return self.value <= self.bar if self.at_most else self.value >= self.bar

    def row(self) -> str:
        """This line for a person."""
        sign = "≤" if self.at_most else "≥"
        verdict = "ok" if self.met else "MISSED"
        return f"{self.name:<66} {self.value:>8.2f}  {sign} {self.bar:<6g} {verdict:<7} {self.note}"


def _settle_memory() -> None:
    """The garbage of the system before is out of the way, and what was imported is nobody's to look through."""
    gc.collect()
    gc.freeze()


def resident() -> int:
    """Bytes of this process that are in memory."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize()


def seconds(work: Callable[[], object]) -> float:
    """How long one call takes."""
    _settle_memory()
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def told_seconds(work: Callable[[], object]) -> float:
    """The seconds a system tells itself: its own beginning and end are not what is measured."""
    _settle_memory()
    told = work()
    assert isinstance(told, float)
    return told


def interleaved(
    systems: Mapping[str, Callable[[], object]],
    runs: int,
    timed: Callable[[Callable[[], object]], float] = seconds,
) -> list[dict[str, float]]:
    """Seconds of every system in every run; the order turns round, so that no system always comes first."""
    names = list(systems)
    for name in names:
        systems[name]()  # warm
    taken = []
    for run in range(runs):
        turn = run % len(names)
        taken.append({name: timed(systems[name]) for name in names[turn:] + names[:turn]})
    return taken


def median_ratio(taken: list[dict[str, float]], above: str, below: str) -> float:
    """The median over runs of one system's time ÷ another's."""
    return statistics.median(run[above] / run[below] for run in taken)
