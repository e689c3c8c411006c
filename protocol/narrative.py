"""A result as the parent reads it: a labelled note in the user's role."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    lines = [f"[{tag_prefix}: {result.label}]", f"Status: {_STATUS[result.status]}"]
    if result.failure is not None:
        lines.append(f"Reason: {result.failure.kind}: {result.failure.message}")
    if result.output:
        lines += ["", result.output]
    usage = result.usage
    lines.append("---")
    lines.append(
        f"Runtime: {result.runtime_ms / 1000:.1f}s | Steps: {result.steps} | Tokens: {usage.total_tokens} | "
        f"Cost: ${usage.cost_usd:.4f} | End: {result.end_reason}"
    )
    return "\n".join(lines)
