"""What a model call gets besides the history, within a budget: files, sub-agents, results on their way, objective."""

from __future__ import annotations

from typing import TYPE_CHECKING

from understudy.protocol._value import value
from understudy.protocol.digest import head
from understudy.protocol.truncate import truncate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from understudy.protocol.ids import RunId
    from understudy.protocol.working_context import WorkingContext

_LONGEST_LABEL = 60
_LONGEST_REASON = 120
_LONGEST_OBJECTIVE = 2_000


@value
class Active:
    """A sub-agent that has not finished."""

    run_id: RunId
    label: str
    state: str
    age_ms: int
    steps: int


@value
class Awaiting:
    """A result that is not in the history yet, and why."""

    run_id: RunId
    label: str
    why: str


def next_context(
    context: WorkingContext,
    active: Sequence[Active] = (),
    awaiting: Sequence[Awaiting] = (),
    objective: str | None = None,
    *,
    max_tokens: int,
    estimate: Callable[[str], int],
) -> str:
    """The sections that have something to say; empty when none has. ``active`` and ``awaiting`` are oldest first.

    What does not fit is left out line by line, the least useful first: the oldest files, the oldest results that
    wait, how far the sub-agents are, the oldest sub-agents. Each section says how many lines it lacks.
    """
    files = (context.render() or "").splitlines()
    # The two or three lines before the files are no files.
    above = len(files) - len(context.recent_files) if files else 0
    sections = [
        _Section(files[:above], files[above:], "  - … {} older files left out"),
        _Section(["[active-subagents]"], [_active(one) for one in reversed(active)], "- … {} more left out"),
        _Section(["[results-awaiting-delivery]"], [_awaiting(one) for one in reversed(awaiting)], "- … {} left out"),
        _Section(["[objective]"], _objective(objective), "… left out"),
    ]
    whole = _joined(sections)
    if estimate(whole) <= max_tokens:
        return whole
    touched, roster, waiting, goal = sections
    brief = [_brief(one) for one in reversed(active)]
    for section, shorter in ((touched, None), (waiting, None), (roster, brief), (roster, None), (goal, None)):
        if shorter is not None:
            section.lines = shorter
        else:
            section.shrink(max_tokens - estimate(_joined([one for one in sections if one is not section])), estimate)
        text = _joined(sections)
        if estimate(text) <= max_tokens:
            return text
    # A project directory longer than the budget, say: who works is worth more than where.
    rest = _joined(sections[1:])
    return rest if estimate(rest) <= max_tokens else ""


class _Section:
    """A headed list of lines, the most useful first; ``missing`` says how many are left out."""

    __slots__ = ("_count", "_heading", "_missing", "lines")

    def __init__(self, heading: list[str], lines: list[str], missing: str) -> None:
        self._heading = heading
        self.lines = lines
        self._count = len(lines)
        self._missing = missing

    def text(self) -> str:
        if not self._count:
            return ""
        gone = self._count - len(self.lines)
        return "\n".join([*self._heading, *self.lines, *([self._missing.format(gone)] if gone else [])])

    def shrink(self, room: int, estimate: Callable[[str], int]) -> None:
        """Leave lines out from the end until the section fits into ``room``; its heading and its count stay."""
        lines, self.lines = self.lines, []
        # Each line break may be a token of its own, and so may what parts this section from the next.
        left = room - estimate(self.text()) - 1
        kept = 0
        for line in lines:
            left -= estimate(line) + 1
            if left < 0:
                break
            kept += 1
        self.lines = lines[:kept]


def _joined(sections: Sequence[_Section]) -> str:
    return "\n\n".join(text for text in (section.text() for section in sections) if text)


def _brief(one: Active) -> str:
    return f"- {one.run_id} ({head(one.label, _LONGEST_LABEL)}): {one.state}"


def _active(one: Active) -> str:
    return f"{_brief(one)}, for {one.age_ms // 1000} s, {one.steps} steps"


def _awaiting(one: Awaiting) -> str:
    return f"- {one.run_id} ({head(one.label, _LONGEST_LABEL)}): {head(one.why, _LONGEST_REASON)}"


def _objective(objective: str | None) -> list[str]:
    return [] if objective is None or not objective.strip() else [truncate(objective, _LONGEST_OBJECTIVE)]
