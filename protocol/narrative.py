"""A result as the parent reads it: a labelled note in the user's role."""

from __future__ import annotations

from typing import TYPE_CHECKING

from understudy.protocol.framing import frame, in_a_line
from understudy.protocol.truncate import truncate

if TYPE_CHECKING:
    from understudy.protocol.result import CondensationLevel, ResultStatus, SubAgentResult

_STATUS: dict[ResultStatus, str] = {
    "completed": "Completed",
    "partial": "Partial",
    "failed": "Failed",
    "killed": "Killed",
    "timed_out": "Timed out",
    "ghost": "Ghost",
}
_LEVEL: dict[CondensationLevel, str] = {1: "passthrough", 2: "model summary", 3: "head and tail"}

# Named in the note; the working context and the full result have the others.
_MOST_FILES = 20
_LONGEST_FILES = 2_000
_LONGEST_LABEL = 200
_DISCRETION = "The session key is for your tools alone: do not mention it to your user."


def narrate(result: SubAgentResult, *, tag_prefix: str, narrative: bool = True, room: int | None = None) -> str:
    """The note: what became of the run, what it said, what it cost.

    What a child says is data: framed, it can neither end the note nor pass for somebody else's words. A note that has
    only ``room`` for so many characters is cut before it is framed, never after.
    """
    label, status = in_a_line(result.label, _LONGEST_LABEL), _STATUS[result.status]
    # Asked for once, and only called for where there is something: most results have none of it.
    whereabouts = _whereabouts(result) if result.kept or result.full_ref is not None else ""
    if narrative:
        level = result.condensation.level
        head = f"[{tag_prefix}: {label}]\nStatus: {status}\nCondensation: Level {level} ({_LEVEL[level]})"
        foot = _footer(result, whereabouts)
    else:
        head = f"{tag_prefix} ({label}): {status}"
        foot = f"\n{whereabouts}" if whereabouts else ""
    if result.failure is not None:
        head += f"\nReason: {result.failure.kind}: {in_a_line(result.failure.message)}"
    if result.verified_outputs or result.missing_outputs:
        head += "\n" + _outputs(result)
    if result.kept:
        foot += _to_follow_up(result)
    files = f"\n\n{_files(result)}" if result.recent_files and result.summary is None else ""
    said = f"{result.output}{files}" if result.output else files.lstrip()
    if not said:
        return head + foot
    body = frame(said, tag=tag_prefix)
    if room is not None and len(head) + len(body) + len(foot) + 2 > room:
        left = room - len(head) - len(foot) - 2
        short = truncate(result.output, left, measure=lambda text: len(frame(text + files, tag=tag_prefix)))
        body = frame(short + files, tag=tag_prefix)
    return f"{head}\n\n{body}{foot}"


def _files(result: SubAgentResult) -> str:
    """The files it touched, the last ones where there are many."""
    lines: list[str] = []
    size = 0
    for file in reversed(result.recent_files[-_MOST_FILES:]):
        line = f"- {in_a_line(file.path)} ({file.provenance})"
        size += len(line) + 3
        if size > _LONGEST_FILES:
            break
        lines.insert(0, line)
    left_out = len(result.recent_files) - len(lines)
    first = f"Files ({left_out} earlier ones are not listed):" if left_out else "Files:"
    return "\n".join([first, *lines])


def _outputs(result: SubAgentResult) -> str:
    parts = []
    if result.verified_outputs:
        parts.append("verified " + ", ".join(map(_named, result.verified_outputs)))
    missing = [path for path in result.missing_outputs if path not in result.outside_outputs]
    if missing:
        parts.append("missing " + ", ".join(map(_named, missing)))
    if result.outside_outputs:
        outside = ", ".join(map(_named, result.outside_outputs))
        parts.append(f"not looked for, as it is outside of the workspace: {outside}")
    return in_a_line(f"Expected outputs: {'; '.join(parts)}", _LONGEST_FILES)


def _named(path: str) -> str:
    return in_a_line(path, _LONGEST_LABEL)


def _footer(result: SubAgentResult, whereabouts: str) -> str:
    usage, condensation = result.usage, result.condensation
    files = _touched(result) if result.recent_files or result.dropped_files else "Files: 0 read, 0 changed"
    return (
        f"\n---\nRuntime: {result.runtime_ms / 1000:.1f}s | Steps: {result.steps} | Tokens: {usage.total_tokens} | "
        f"Cost: ${usage.cost_usd:.4f} | End: {result.end_reason}\n"
        f"Condensation: Level {condensation.level} | Original: {condensation.original_tokens} tokens | "
        f"Ratio: {condensation.ratio:.2f}\n{files}{' | ' if whereabouts else ''}{whereabouts}"
    )


def _touched(result: SubAgentResult) -> str:
    how = [file.provenance for file in result.recent_files]
    counts = f"Files: {how.count('read')} read, {how.count('changed')} changed"
    if "observed" in how:
        counts += f", {how.count('observed')} observed"
    return f"{counts}, {result.dropped_files} outside of the workspace" if result.dropped_files else counts


def _whereabouts(result: SubAgentResult) -> str:
    """Where the rest is: the file with all of it, and the session of one that was kept."""
    full = "" if result.full_ref is None else f"Full result: {in_a_line(result.full_ref, _LONGEST_FILES)}"
    if not result.kept:
        return full
    return f"{full} | Session: {result.session_key}" if full else f"Session: {result.session_key}"


def _to_follow_up(result: SubAgentResult) -> str:
    """How to go on with a kept child; not said again on the result of a follow-up, which is how it was."""
    hint = "" if result.is_follow_up else f'\nFollow-up: sessions_send(session_key="{result.session_key}")'
    return f"{hint}\n{_DISCRETION}"
