"""What the models of both SDKs share: clients, the shape of a call, errors, usage."""

from __future__ import annotations

import asyncio
import contextlib
import os
from abc import ABC, abstractmethod
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from understudy.actors.models._room import Room, bound_events
from understudy.actors.models.errors import ProviderError, provider_error
from understudy.actors.models.prices import Price, Tokens
from understudy.persistence import Redactor
from understudy.protocol.model import ModelEvent, UsageReport

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from understudy.protocol.model import ModelRequest

NO_PRICES: Mapping[str, Price] = MappingProxyType({})
NO_OPTIONS: Mapping[str, object] = MappingProxyType({})

READ_TIMEOUT = 300.0
"""Seconds of silence on the socket. The runtime's own limits are tighter; this is the net under them."""

CONNECT_TIMEOUT = 15.0


class ProviderModel(ABC):
    """A model behind one of the SDKs. Closing an answer's iterator closes its connection."""

    provider: str
    _settings: dict[str, Any]

    def __init__(self, model: str, *, prices: Mapping[str, Price], options: Mapping[str, object], secret: str) -> None:
        self.model = model
        self._prices = dict(prices)
        self._options = dict(options)
        self._redactor = Redactor([secret])
        # A client's connections belong to one event loop; a host may use a model from several.
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, Any] = WeakKeyDictionary()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model!r}{self._shown_address()})"

    async def complete(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Answer once. Whatever goes wrong is a `ProviderError`, after a report of what was consumed until then."""
        tokens = Tokens()
        failure: ProviderError | None = None
        stream: Any = None
        try:
            stream = await self._open(self._client(), request)
            async with contextlib.aclosing(self._events(stream, tokens, Room(self.provider))) as events:
                async for event in events:
                    yield event
        except ProviderError as error:
            failure = error
        except Exception as error:
            failure = provider_error(error, provider=self.provider, redactor=self._redactor, reading=stream is not None)
            if failure is None:
                raise
        finally:
            if stream is not None:
                # Shielded: a second cancellation must not leave the connection open.
                await asyncio.shield(stream.close())
        if tokens != Tokens():
            yield UsageReport(tokens.usage(self._prices.get(request.model or self.model)))
        if failure is not None:
            # Raised here, outside of the handler, so that the SDK's error, which knows the request and its headers,
            # does not hang on to ours as its context.
            raise failure

    async def close(self) -> None:
        """Close the connections that were made on this event loop."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.close()

    def _client(self) -> Any:
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None:
            client = self._clients[loop] = self._make_client()
        return client

    def _http_client(self, sdk: Any) -> Any:
        """The HTTP client that ``sdk`` would make by itself, with a limit to what it reads."""
        hooks = {"response": [partial(bound_events, who=self.provider)]}
        return sdk.DefaultAsyncHttpxClient(timeout=self._settings["timeout"], event_hooks=hooks)

    def _shown_address(self) -> str:
        """Where it calls, without a user name, password or query that may stand in the URL."""
        address = self._address()
        if address is None:
            return ""
        parts = urlsplit(address)
        port = f":{parts.port}" if parts.port else ""
        return f", base_url='{parts.scheme}://{parts.hostname}{port}{parts.path}'"

    @abstractmethod
    def _address(self) -> str | None:
        """The base URL the host gave."""

    @abstractmethod
    def _make_client(self) -> Any:
        """The SDK's client, for the running loop."""

    @abstractmethod
    async def _open(self, client: Any, request: ModelRequest) -> Any:
        """Send the request; the answer is a stream of the SDK, to be closed."""

    @abstractmethod
    def _events(self, stream: Any, tokens: Tokens, room: Room) -> AsyncGenerator[ModelEvent, None]:
        """The answer, as it comes, as far as there is ``room``; writes down in ``tokens`` what is known to be used."""


def key_to_send(given: str | None, *, variable: str, base_url: str | None, model: str) -> str:
    """The key to send, or an empty one. A key from the environment never goes to an address that is not."""
    if given:
        return given
    if base_url is not None:
        return ""
    if found := os.environ.get(variable):
        return found
    raise ValueError(
        f"{model} needs a key: pass api_key or set {variable}; an endpoint given by base_url may need none"
    )


def ended_early(provider: str) -> ProviderError:
    """A stream that just ends looks like an answer, and is half of one."""
    return ProviderError(f"{provider}: connection: the stream ended in the middle of the answer", kind="connection")
