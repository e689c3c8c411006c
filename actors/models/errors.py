"""What can go wrong with a provider, in one family, whichever SDK said it."""

from __future__ import annotations

import email.utils
import math
import re
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from understudy.persistence import Redactor

ErrorKind = Literal[
    "rate_limit",
    "overloaded",
    "timeout",
    "connection",
    "server",
    "malformed",
    "auth",
    "quota",
    "not_found",
    "bad_request",
    "context_full",
    "runaway",
]
"""Why a call failed; ``malformed`` is an answer that cannot be read, ``runaway`` one that does not end."""

_RETRYABLE: frozenset[ErrorKind] = frozenset(
    {"rate_limit", "overloaded", "timeout", "connection", "server", "malformed"}
)
_REQUESTS_OWN: frozenset[ErrorKind] = frozenset({"bad_request", "context_full", "runaway"})

# An error body may be a whole page of HTML.
_MAX_MESSAGE = 500

# What the providers call it; a status of 200 can carry any of these in the middle of a stream.
_BY_NAME: Mapping[str, ErrorKind] = {
    "rate_limit_error": "rate_limit",
    "rate_limit_exceeded": "rate_limit",
    "overloaded_error": "overloaded",
    "timeout_error": "timeout",
    "api_error": "server",
    "server_error": "server",
    "insufficient_quota": "quota",
    "billing_error": "quota",
    "authentication_error": "auth",
    "permission_error": "auth",
    "invalid_api_key": "auth",
    "not_found_error": "not_found",
    "model_not_found": "not_found",
    "context_length_exceeded": "context_full",
    "request_too_large": "context_full",
}
_BY_STATUS: Mapping[int, ErrorKind] = {
    401: "auth",
    402: "quota",
    403: "auth",
    404: "not_found",
    408: "timeout",
    409: "server",
    413: "context_full",
    429: "rate_limit",
    503: "overloaded",
    504: "timeout",
    529: "overloaded",
}
_FIRST_SERVER_STATUS = 500
_FIRST_ERROR_STATUS = 400
_TOO_LONG = re.compile(
    r"prompt is too long|context[ _](?:length|window|size)|maximum context|too many tokens", re.IGNORECASE
)
# The layers below the SDKs, whose errors come through in the middle of a stream.
_TRANSPORT = frozenset({"httpx", "httpcore", "h11", "anyio", "ssl"})
# What reading an answer of the wrong shape raises.
_UNREADABLE = (ValueError, TypeError, AttributeError, LookupError)


class ProviderError(Exception):
    """A model call failed. The message holds no secret, and no request."""

    def __init__(
        self, message: str, *, kind: ErrorKind, retryable: bool | None = None, retry_after_ms: int | None = None
    ) -> None:
        """``retryable`` follows from ``kind`` unless the provider said otherwise."""
        super().__init__(message)
        self.kind: ErrorKind = kind
        self.retryable = kind in _RETRYABLE if retryable is None else retryable
        self.retry_after_ms = retry_after_ms
        """How long the provider asks to be left alone."""

    @property
    def is_the_requests_own(self) -> bool:
        """What was asked, or what the model made of it, was wrong; that says nothing about the provider's health."""
        return self.kind in _REQUESTS_OWN

    def __reduce__(self) -> tuple[object, ...]:
        return _restored, (str(self), self.kind, self.retryable, self.retry_after_ms)


def _restored(message: str, kind: ErrorKind, retryable: bool, retry_after_ms: int | None) -> ProviderError:
    return ProviderError(message, kind=kind, retryable=retryable, retry_after_ms=retry_after_ms)


class MissingExtraError(ImportError):
    """The SDK a model needs is not installed."""


def provider_error(error: Exception, *, provider: str, redactor: Redactor, reading: bool) -> ProviderError | None:
    """``error`` of an SDK, or of the transport under it, as one of ours; None when it is neither's, but a mistake.

    The SDKs are read by what their errors carry (``status_code``, ``body``, ``response``), so that this module
    imports neither. ``reading``: the answer had begun, so what cannot be understood is the answer's fault.
    """
    code = getattr(error, "status_code", None)
    status = code if isinstance(code, int) and code >= _FIRST_ERROR_STATUS else None
    names, said = _body(getattr(error, "body", None))
    text = " ".join(redactor.text(said or str(error) or type(error).__name__).split())[:_MAX_MESSAGE]
    kind = _by_name(names) or _by_status(status, text) or _by_class(error)
    if kind is None and names:  # in the middle of a stream, under a name nobody knows
        kind = "bad_request" if "invalid_request_error" in names else "server"
    if kind is None and reading and isinstance(error, _UNREADABLE):
        kind = "malformed"
    if kind is None:
        return None
    headers: Mapping[str, str] = getattr(getattr(error, "response", None), "headers", None) or {}
    shown = f" (HTTP {status})" if status else ""
    return ProviderError(
        f"{provider}: {kind}{shown}: {text}",
        kind=kind,
        retryable=False if headers.get("x-should-retry") == "false" else None,
        retry_after_ms=_retry_after_ms(headers),
    )


def _body(body: object) -> tuple[list[str], str]:
    """How the provider names the error, most telling first, and its message."""
    if isinstance(body, dict) and isinstance(body.get("error"), dict):
        body = body["error"]
    if not isinstance(body, dict):
        return [], ""
    message = body.get("message")
    return [str(body[key]) for key in ("code", "type") if body.get(key)], message if isinstance(message, str) else ""


def _by_name(names: list[str]) -> ErrorKind | None:
    return next((_BY_NAME[name] for name in names if name in _BY_NAME), None)


def _by_status(status: int | None, text: str) -> ErrorKind | None:
    if status is None:
        return None
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    if status >= _FIRST_SERVER_STATUS:
        return "server"
    return "context_full" if _TOO_LONG.search(text) else "bad_request"


def _by_class(error: Exception) -> ErrorKind | None:
    family = type(error).__mro__
    if any("Timeout" in base.__name__ for base in family):
        return "timeout"
    modules = {base.__module__.partition(".")[0].rstrip("0123456789") for base in family}
    if (
        isinstance(error, OSError)
        or any(base.__name__ == "APIConnectionError" for base in family)
        or modules & _TRANSPORT
    ):
        return "connection"
    return None


def _retry_after_ms(headers: Mapping[str, str]) -> int | None:
    for name, factor in (("retry-after-ms", 1.0), ("retry-after", 1000.0)):
        seconds = _number(headers.get(name))
        if seconds is not None:
            return max(0, math.ceil(seconds * factor))
    # It may be a date: compared with the server's own, so that nobody's clock matters.
    until, now = _date(headers.get("retry-after")), _date(headers.get("date"))
    return None if until is None or now is None else max(0, math.ceil((until - now) * 1000))


def _number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _date(text: str | None) -> float | None:
    try:
        return email.utils.parsedate_to_datetime(text or "").timestamp()
    except ValueError:
        return None
