"""The door: every request shows a Host, an Origin and a token before anything else looks at it."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException

from understudy.actors.clock import within
from understudy.gateway.http.problems import problem
from understudy.gateway.http.tokens import TokenFileError

if TYPE_CHECKING:
    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from understudy.actors import Clock
    from understudy.gateway.http.tokens import Grant, Tokens

logger = logging.getLogger("understudy")

_BEARER = "bearer "
EVENTS = "/api/events"
"""The one answer that has no end, and so no time to be ready in."""

MOST_BYTES = 1_048_576
PATIENCE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Rules:
    """What is let in: whose names for this server, which pages' scripts, how much, and for how long."""

    hosts: frozenset[str]
    """``name:port`` as in the Host header. A page that has its own name point here (DNS rebinding) is none of them."""
    origins: frozenset[str] = field(default_factory=frozenset)
    """Origins of pages besides this server's own whose scripts may ask."""
    most_bytes: int = MOST_BYTES
    """The largest body."""
    patience: float = PATIENCE_SECONDS
    """Seconds a request may take, its body included."""


class Door:
    """ASGI: lets in what the rules and the tokens allow, and nothing else."""

    def __init__(self, app: ASGIApp, *, tokens: Tokens, rules: Rules, clock: Clock) -> None:
        self._app = app
        self._tokens = tokens
        self._rules = rules
        self._clock = clock
        self._own = frozenset(f"http://{host}" for host in rules.hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            assert scope["type"] == "lifespan", "there are no web sockets here"
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        refusal = self._misdirected(headers)
        if refusal is None and not self._asks_for_leave(scope, headers):
            grant = self._grant(headers)
            if grant is None:
                refusal = _unauthorized()
            else:
                scope.setdefault("state", {})["agent_id"] = grant.agent_id
        if refusal is not None:
            await refusal(scope, receive, send)
        elif scope["path"] == EVENTS:
            await self._app(scope, receive, send)
        else:
            await self._in_time(scope, self._measured(headers, receive), send)

    def _misdirected(self, headers: Headers) -> Response | None:
        """Why a request that may be a browser's, sent by a page of somebody else's, is not looked at."""
        hosts, origins = headers.getlist("host"), headers.getlist("origin")
        if len(hosts) != 1 or hosts[0].lower() not in self._rules.hosts:
            return problem(HTTPStatus.FORBIDDEN, f"Host {_shown(hosts)} is not this server's: use {self._names()}")
        if origins and (len(origins) != 1 or origins[0] not in self._own | self._rules.origins):
            return problem(HTTPStatus.FORBIDDEN, f"Origin {_shown(origins)} is not allowed: ask from outside a page")
        return None

    def _asks_for_leave(self, scope: Scope, headers: Headers) -> bool:
        """Whether a browser asks, without a token, what a page it knows to be allowed may send."""
        asked = scope["method"] == "OPTIONS" and "access-control-request-method" in headers
        return asked and headers.get("origin") in self._rules.origins

    def _grant(self, headers: Headers) -> Grant | None:
        given = headers.getlist("authorization")
        if len(given) != 1 or not given[0].lower().startswith(_BEARER):
            return None
        try:
            return self._tokens.grant(given[0][len(_BEARER) :])
        except (TokenFileError, OSError):
            logger.exception("the tokens cannot be read: nobody is let in")
            return None

    def _measured(self, headers: Headers, receive: Receive) -> Receive:
        """The body as it comes in, up to the limit: what its length claims to be is only the first thing looked at."""
        most = self._rules.most_bytes
        taken = 0
        claimed = headers.get("content-length", "0")

        async def measured() -> Message:
            nonlocal taken
            if claimed.isdecimal() and int(claimed) > most:
                raise _too_large(most)
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > most:
                raise _too_large(most)
            return message

        return measured

    async def _in_time(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def watched(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        async def answer() -> None:
            await self._app(scope, receive, watched)

        try:
            await within(self._clock, self._rules.patience, answer())
        except TimeoutError:
            if begun:
                raise
            words = f"not done within {self._rules.patience:g} s; what was begun goes on: ask for it before you repeat"
            await problem(HTTPStatus.SERVICE_UNAVAILABLE, words)(scope, receive, send)

    def _names(self) -> str:
        return ", ".join(sorted(self._rules.hosts))


def _unauthorized() -> Response:
    words = "no valid token: send `Authorization: Bearer …` with the one in the server's token file"
    return problem(HTTPStatus.UNAUTHORIZED, words, {"www-authenticate": "Bearer"})


def _too_large(most: int) -> HTTPException:
    return HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body is larger than the {most} bytes allowed")


def _shown(values: list[str]) -> str:
    return repr(", ".join(values)[:60]) if values else "(none)"
