"""What a whole tree of sub-agents has consumed, and what it may."""

from __future__ import annotations

from typing import TYPE_CHECKING

from understudy.protocol import Budget
from understudy.protocol.usage import NO_USAGE, Usage

if TYPE_CHECKING:
    from understudy.protocol import RuntimeConfig


class Tally:
    """Usage that adds up, beside its limit. As numbers: a `Usage` made for every sum would be validated every time."""

    __slots__ = ("_cost_usd", "_input_tokens", "_output_tokens", "budget")

    def __init__(self, budget: Budget | None, usage: Usage = NO_USAGE) -> None:
        self.budget = budget
        self._input_tokens = usage.input_tokens
        self._output_tokens = usage.output_tokens
        self._cost_usd = usage.cost_usd

    @property
    def usage(self) -> Usage:
        """All of it."""
        return Usage(input_tokens=self._input_tokens, output_tokens=self._output_tokens, cost_usd=self._cost_usd)

    def add(self, usage: Usage) -> None:
        """More was consumed."""
        self._input_tokens += usage.input_tokens
        self._output_tokens += usage.output_tokens
        self._cost_usd += usage.cost_usd

    def spent(self) -> tuple[float, float, str] | None:
        """What is used up: amount, limit and unit of the first limit that is reached."""
        budget = self.budget
        if budget is None:
            return None
        tokens = self._input_tokens + self._output_tokens
        if budget.tokens is not None and tokens >= budget.tokens:
            return tokens, budget.tokens, "tokens"
        if budget.cost_usd is not None and self._cost_usd >= budget.cost_usd:
            return self._cost_usd, budget.cost_usd, "US dollars"
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
