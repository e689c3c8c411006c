"""What a run consumed."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, NonNegativeFloat, NonNegativeInt


class Usage(BaseModel):
    """Tokens and money, summed over every model call of a run; adds up along the tree."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    input_tokens: NonNegativeInt = 0
    output_tokens: NonNegativeInt = 0
    cost_usd: NonNegativeFloat = 0.0

    @property
    def total_tokens(self) -> int:
        """Input and output together: what a token budget is compared with."""
        return self.input_tokens + self.output_tokens

    def __add__(self, other: Usage) -> Usage:
        if not isinstance(other, Usage):
            return NotImplemented
        if self is NO_USAGE:
            return other  # both are frozen, and most runs add to nothing: one model call, one report
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cost_usd=self.cost_usd + other.cost_usd,
        )


NO_USAGE = Usage()
