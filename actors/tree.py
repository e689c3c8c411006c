"""What a whole tree of sub-agents has consumed, and what it may."""

from __future__ import annotations

from typing import TYPE_CHECKING

from understudy.protocol import Budget
from understudy.protocol.usage import NO_USAGE, Usage

if TYPE_CHECKING:
    from understudy.protocol import RuntimeConfig


class Tally:
    """Usage that adds up, beside its limit."""

    __slots__ = ("budget", "usage")

    def __init__(self, budget: Budget | None, usage: Usage = NO_USAGE) -> None:
        self.budget = budget
        self.usage = usage

    def add(self, usage: Usage) -> None:
        """More was consumed."""
        self.usage = self.usage + usage

    def spent(self) -> tuple[float, float, str] | None:
        """What is used up: amount, limit and unit of the first limit that is reached."""
        budget = self.budget
        if budget is None:
            return None
        if budget.tokens is not None and self.usage.total_tokens >= budget.tokens:
            return self.usage.total_tokens, budget.tokens, "tokens"
        if budget.cost_usd is not None and self.usage.cost_usd >= budget.cost_usd:
            return self.usage.cost_usd, budget.cost_usd, "US dollars"
        return None


def tree_budget(config: RuntimeConfig) -> Budget | None:
    """The limit of one session's whole tree."""
    return _budget(config.tree_token_budget, config.tree_cost_budget_usd)


def run_budget(asked: Budget | None, config: RuntimeConfig) -> Budget | None:
    """The limit of one run: what was asked for, never above what the runtime allows."""
    if asked is None:
        return _budget(config.run_token_budget, config.run_cost_budget_usd)
    return _budget(
        _least(asked.tokens, config.run_token_budget),
        _least(asked.cost_usd, config.run_cost_budget_usd),
    )


def _least(asked: float | None, allowed: float | None) -> float | None:
    return min((limit for limit in (asked, allowed) if limit is not None), default=None)


def _budget(tokens: float | None, cost_usd: float | None) -> Budget | None:
    return None if tokens is None and cost_usd is None else Budget(tokens=tokens, cost_usd=cost_usd)
