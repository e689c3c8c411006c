"""What went wrong, as RFC 9457 has it: one clear sentence, and never a secret from the request."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from understudy.actors import NotSentError, SessionBusy, SessionClosedError, UnknownRunError
from understudy.persistence import StoreClosedError, StoreUnavailableError
from understudy.protocol import SpawnRejected
from understudy.protocol.spawn import RejectionReason

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fastapi import FastAPI, Request

logger = logging.getLogger("understudy")

MEDIA_TYPE = "application/problem+json"
_SHOWN = 3
_LONGEST_VALUE = 60

# A limit that frees itself is 429, one that does not is 409: whoever asks again knows whether that helps.
_STATUS_OF_REJECTION: dict[RejectionReason, int] = {
    "depth_exceeded": HTTPStatus.CONFLICT,
    "not_allowed": HTTPStatus.FORBIDDEN,
    "budget_exceeded": HTTPStatus.TOO_MANY_REQUESTS,
    "children_exceeded": HTTPStatus.TOO_MANY_REQUESTS,
    "queue_full": HTTPStatus.TOO_MANY_REQUESTS,
    "duplicate_conflict": HTTPStatus.CONFLICT,
    "undelivered_backlog": HTTPStatus.TOO_MANY_REQUESTS,
    "store_unavailable": HTTPStatus.SERVICE_UNAVAILABLE,
}

MEANINGS = {
    400: "The body cannot be read.",
    401: "There is no token, or not one of ours.",
    403: "The Host or Origin is not allowed, or the session may not spawn this.",
    404: "There is nothing of that name, or it is not this token's to see: the two answer alike.",
    405: "The route knows other methods.",
    409: "It cannot be done as things stand.",
    413: "The body is too large.",
    422: "A value is not allowed.",
    429: "A limit is reached: try again later.",
    500: "The server failed.",
    503: "The store cannot be reached, the server stops, or it took too long.",
}
"""Every answer that is no success."""


class Problem(BaseModel):
    """Problem details; a refused spawn has its reason, and the limit with what stands against it."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    reason: RejectionReason | None = None
    current: int | float | str | None = None
    limit: int | float | str | list[str] | None = Field(default=None)


class UnknownError(LookupError):
    """There is no such thing, or not for this token."""


def problem(status: int, detail: str, headers: Mapping[str, str] | None = None, **more: Any) -> JSONResponse:
    """An answer that is no success."""
    told = Problem(title=HTTPStatus(status).phrase, status=status, detail=detail, **more)
    content = told.model_dump(mode="json", exclude_none=True)
    return JSONResponse(content, status, dict(headers or {}), MEDIA_TYPE)


def unknown() -> JSONResponse:
    """The same words whether it is not there or somebody else's."""
    return problem(HTTPStatus.NOT_FOUND, "there is nothing of that name for this token: list what there is")


def install(app: FastAPI) -> None:
    """Answer everything that can be raised on the way of a request."""
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(SpawnRejected, _rejected)
    for missing in (UnknownError, UnknownRunError):
        app.add_exception_handler(missing, lambda _request, _error: unknown())
    for conflict in (SessionBusy, SessionClosedError, NotSentError):
        app.add_exception_handler(conflict, lambda _request, error: problem(HTTPStatus.CONFLICT, str(error)))
    for away in (StoreUnavailableError, StoreClosedError):
        app.add_exception_handler(away, lambda _request, error: problem(HTTPStatus.SERVICE_UNAVAILABLE, str(error)))
    app.add_exception_handler(Exception, _unforeseen)


def _http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    if error.status_code == HTTPStatus.NOT_FOUND:
        return unknown()
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        allowed = (error.headers or {}).get("Allow", "another method")
        return problem(error.status_code, f"{request.method} is not for this route: use {allowed}", error.headers)
    return problem(error.status_code, error.detail, error.headers)


def _invalid(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    problems = error.errors()
    if any(one["type"] == "json_invalid" for one in problems):
        return problem(HTTPStatus.BAD_REQUEST, "the body is no JSON: send one JSON object")
    shown = "; ".join(_sentence(one) for one in problems[:_SHOWN])
    more = len(problems) - _SHOWN
    return problem(HTTPStatus.UNPROCESSABLE_ENTITY, shown + (f"; and {more} more" if more > 0 else ""))


def _sentence(error: Mapping[str, Any]) -> str:
    """Where, which value, and what is allowed. A value of a body may be a secret: it is not repeated."""
    where, *names = error["loc"]
    name = ".".join(map(str, names))
    message = error["msg"].removeprefix("Value error, ")
    if where == "body":
        if error["type"] in {"missing", "model_attributes_type", "dict_type"} and not name:
            return "the body is no JSON object: send one, with the header Content-Type: application/json"
        return f"{name}: {message}"
    value = error["input"]
    if not isinstance(value, str) or "is not allowed" in message:
        return message if isinstance(value, str) else f"{name}: {message}"
    shown = f"{value[:_LONGEST_VALUE]}…" if len(value) > _LONGEST_VALUE else value
    return f"{name} = {shown!r} is not allowed: {message}"


def _rejected(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, SpawnRejected)
    told = error.rejection
    status = _STATUS_OF_REJECTION[told.reason]
    return problem(status, told.message, reason=told.reason, current=told.current, limit=told.limit)


def _unforeseen(_request: Request, error: Exception) -> JSONResponse:
    # Its words may hold anything; whoever runs the server finds them in the log.
    return problem(HTTPStatus.INTERNAL_SERVER_ERROR, f"the server failed with {type(error).__name__}: see its log")
