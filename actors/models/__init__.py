"""Models of the world outside, each behind its official SDK; importing this needs none of them."""

from understudy.actors.models.anthropic import AnthropicModel
from understudy.actors.models.errors import MissingExtraError, ProviderError
from understudy.actors.models.health import ProviderHealth
from understudy.actors.models.openai import OpenAIModel
from understudy.actors.models.prices import Price
from understudy.actors.models.retry import retrying

__all__ = [
    "AnthropicModel",
    "MissingExtraError",
    "OpenAIModel",
    "Price",
    "ProviderError",
    "ProviderHealth",
    "retrying",
]
