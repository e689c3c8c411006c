"""A result as the parent reads it: a labelled note in the user's role."""

from __future__ import annotations

from typing import TYPE_CHECKING

from understudy.protocol.framing import frame

if TYPE_CHECKING:
    from understudy.protocol.result import ResultStatus, SubAgentResult

_STATUS: dict[ResultStatus, str] = {
    "completed": "Completed",
    "partial": "Partial",
    "failed": "Failed",
    "killed": "Killed",
    "timed_out": "Timed out",
    "ghost": "Ghost",
}


def narrate(result: SubAgentResult, *, tag_prefix: str) -> str:
    """The note: what became of the run, what it said, what it cost."""
    reason = "" if result.failure is None else f"\nReason: {result.failure.kind}: {_in_a_line(result.failure.message)}"
    # What a child says is data: framed, it can neither end the note nor pass for somebody else's words.
    body = f"\n\n{frame(result.output)}" if result.output else ""
    usage = result.usage
    return (
        f"[{tag_prefix}: {result.label}]\nStatus: {_STATUS[result.status]}{reason}{body}\n---\n"
        f"Runtime: {result.runtime_ms / 1000:.1f}s | Steps: {result.steps} | Tokens: {usage.total_tokens} | "
        f"Cost: ${usage.cost_usd:.4f} | End: {result.end_reason}"
    )


def _in_a_line(text: str) -> str:
    """An error may hold a child's words too: no line break in it, and nothing that cannot be seen."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
