"""What tokens cost, as the host says: prices change more often than libraries."""

from __future__ import annotations

from dataclasses import dataclass

from understudy.protocol import Usage

_MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class Price:
    """Dollars for a million tokens; a cached token costs as much as any other unless it is given."""

    input_per_million: float
    output_per_million: float
    cache_read_per_million: float | None = None
    cache_write_per_million: float | None = None


@dataclass(slots=True)
class Tokens:
    """What one call consumed, by what it is billed as."""

    fresh: int = 0
    cache_read: int = 0
    cache_write: int = 0
    output: int = 0

    def usage(self, price: Price | None) -> Usage:
        """All input counted in, cached or not; without a price the cost is 0."""
        cost = 0.0
        if price is not None:
            read = price.input_per_million if price.cache_read_per_million is None else price.cache_read_per_million
            write = price.input_per_million if price.cache_write_per_million is None else price.cache_write_per_million
            cost = (
                self.fresh * price.input_per_million
                + self.cache_read * read
                + self.cache_write * write
                + self.output * price.output_per_million
            ) / _MILLION
        total = self.fresh + self.cache_read + self.cache_write
        return Usage(input_tokens=total, output_tokens=self.output, cost_usd=cost)
