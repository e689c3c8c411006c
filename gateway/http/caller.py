"""Whoever asks, and all that is theirs to see and to act on."""

from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated

from fastapi import Depends, Path, Query, Request
from pydantic import WithJsonSchema
from starlette.exceptions import HTTPException

from understudy.actors import AsyncRuntime, AsyncSession
from understudy.actors.errors import NotSentError
from understudy.gateway.http.problems import UnknownError
from understudy.gateway.http.schemas import MOST_ON_A_PAGE
from understudy.persistence import DeadLetterRecord, Ledger, RunRecord, SessionRecord
from understudy.protocol import RunId, SessionKey
from understudy.protocol._explain import nearest

LARGEST = 2**63 - 1
"""Of SQLite's integers."""


@dataclass(frozen=True, slots=True)
class Caller:
    """A request's token, beside the runtime: with ``agent_id`` only that agent's things are there."""

    runtime: AsyncRuntime
    agent_id: str | None

    @property
    def store(self) -> Ledger:
        """Everything that survives; what is read from it here is the caller's."""
        return self.runtime.store

    def sees(self, agent_id: str | None) -> bool:
        """Whether an agent's things are the caller's to see."""
        return self.agent_id is None or agent_id == self.agent_id

    def session(self, key: str) -> SessionRecord:
        """A session; raises UnknownError where it is not there, or not for this caller."""
        record = self.store.sessions.get(key)
        if record is None or not self.sees(record.agent_id):
            raise UnknownError
        return record

    def run(self, run_id: str) -> RunRecord:
        """A run, likewise."""
        record = self.store.runs.get(run_id)
        if record is None:
            raise UnknownError
        self.session(record.parent_session_key)
        return record

    def letter(self, number: int) -> DeadLetterRecord:
        """A dead letter, likewise; one without a session is nobody's but the host's."""
        record = self.store.dead_letters.get(number)
        if record is None:
            raise UnknownError
        if self.agent_id is not None:
            self.session(record.session_key or "")
        return record

    async def opened(self, key: str, *, create: bool = False) -> AsyncSession:
        """One of the host's own sessions, open here.

        A token for one agent makes none: whether a key is free would tell what others have.
        """
        if create and self.agent_id is None and self.store.sessions.get(key) is None:
            return await self.runtime.session(key)
        above = self.session(key).parent_session_key
        if above is not None:
            raise NotSentError(f"session {key} is a sub-agent's: spawn from {above}, or follow it up")
        return await self.runtime.session(key)

    async def above(self, record: RunRecord) -> AsyncSession:
        """The session at the top of a run's tree, which may act on everything below it."""
        return await self.runtime.session(record.root_session_key)


async def _caller(request: Request) -> Caller:
    return Caller(request.app.state.runtime, request.state.agent_id)


async def known_only(request: Request) -> None:
    """Refuse a query parameter that the route does not have: a filter with a slip in it must not be none at all."""
    route = request.app.openapi()["paths"][request.scope["route"].path][request.method.lower()]
    known = [parameter["name"] for parameter in route.get("parameters", ()) if parameter["in"] == "query"]
    for name in request.query_params:
        if name not in known:
            allowed = f"use {', '.join(known)}" if known else "this route has none"
            words = f"query parameter {name[:60]!r} is not allowed{nearest(name, known)}: {allowed}"
            raise HTTPException(HTTPStatus.UNPROCESSABLE_ENTITY, words)


Asking = Annotated[Caller, Depends(_caller)]
Key = Annotated[
    SessionKey,
    Path(description=f"A session key: {SessionKey.allowed}."),
    WithJsonSchema({"type": "string", "pattern": f"^{SessionKey.pattern.pattern}$"}),
]
Run = Annotated[
    RunId,
    Path(description=f"A run id: {RunId.allowed}."),
    WithJsonSchema({"type": "string", "pattern": f"^{RunId.pattern.pattern}$"}),
]
Limit = Annotated[int, Query(ge=1, le=MOST_ON_A_PAGE, description="How many at most.")]
Cursor = Annotated[
    str | None, Query(pattern=r"^[0-9]{1,19}$", description="What a page gave, for those that follow it.")
]
