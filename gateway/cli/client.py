"""Asking a running server: the one that serves a database says so in a file beside it."""

from __future__ import annotations

import contextlib
import http.client
import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from understudy.gateway.cli.options import DEFAULT_DB
from understudy.gateway.cli.refusal import Exit, Refusal
from understudy.gateway.nearby import nearby

if TYPE_CHECKING:
    from collections.abc import Iterator

_PATIENCE = 60.0
"""Seconds for an answer: as long as a server takes at most, and a little more."""
_SILENCE = 60.0
"""Seconds without a word, not even a comment, after which a stream of events is taken for dead."""
_LONGEST_ANSWER = 64 * 2**20


class _NoDetours(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """The token is for this server and nobody it points to."""


# No proxies either, whatever the environment says: the server is on this machine.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoDetours)


class ServerGone(Refusal):
    """Nobody answers where a server was."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server said: its document, or why not."""

    status: int
    document: dict[str, Any]

    @property
    def ok(self) -> bool:
        """Whether it did what it was asked."""
        return self.status < http.client.BAD_REQUEST


@dataclass(frozen=True, slots=True)
class Server:
    """A server on this machine."""

    url: str
    pid: int
    token_file: Path

    def ask(self, path: str) -> Answer:
        """Read something."""
        return self._answer(self._request(path))

    def tell(self, path: str, body: dict[str, Any]) -> Answer:
        """Have something done."""
        request = self._request(path)
        request.data = json.dumps(body).encode()
        request.add_header("Content-Type", "application/json")
        return self._answer(request)

    def done(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Have something done, and refuse in the server's own words where it was not."""
        answer = self.tell(path, body)
        if not answer.ok:
            raise self.refusal(answer)
        return answer.document

    @contextlib.contextmanager
    def listening(self) -> Iterator[Iterator[dict[str, Any]]]:
        """Events as they come, from the moment this is entered; they end when the server does."""
        request = self._request("/api/events")
        request.add_header("Accept", "text/event-stream")
        with self._open(request, _SILENCE) as response:
            if response.status != http.client.OK:
                raise self.refusal(_read(response))
            lines = _lines(response)
            for line in lines:
                if not line:
                    break  # the welcome: from here on nothing is missed
            yield _events(lines)

    def _request(self, path: str) -> urllib.request.Request:
        request = urllib.request.Request(f"{self.url}{path}")  # noqa: S310 - http on loopback, looked at when found
        request.add_header("Accept", "application/json")
        request.add_header("Authorization", f"Bearer {self._token()}")
        return request

    def _token(self) -> str:
        try:
            return self.token_file.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise Refusal(f"the token in {self.token_file} cannot be read: {error}", Exit.BAD_INPUT) from error

    def _answer(self, request: urllib.request.Request) -> Answer:
        with self._open(request, _PATIENCE) as response:
            try:
                return _read(response)
            except (OSError, http.client.HTTPException) as error:
                raise self._gone(error) from error

    def refusal(self, answer: Answer) -> Refusal:
        """The server's no, in its own words."""
        words = str(answer.document.get("detail") or f"status {answer.status}")
        if answer.status == http.client.UNAUTHORIZED:
            words = f"it does not take the token in {self.token_file}: start it again, which makes a new one"
        code = Exit.BAD_INPUT if answer.status == http.client.UNPROCESSABLE_ENTITY else Exit.NOT_SO
        return Refusal(f"the server at {self.url} refused: {words}", code)

    def _open(self, request: urllib.request.Request, patience: float) -> Any:
        try:
            return _OPENER.open(request, timeout=patience)
        except urllib.error.HTTPError as refused:
            return refused  # an answer like any other: it can be read and closed
        except (OSError, http.client.HTTPException) as error:
            raise self._gone(error) from error

    def _gone(self, error: Exception) -> ServerGone:
        why = getattr(error, "reason", None) or error
        return ServerGone(
            f"the server at {self.url} does not answer ({why}): start it with `understudy serve`", Exit.NOBODY_SERVES
        )


def find_server(db: Path | None) -> Server | None:
    """Whoever says to serve this database; None when nobody does, or the process that did is gone."""
    found = nearby(str(db or DEFAULT_DB))
    return None if found is None else Server(found.url, found.pid, Path(found.token_file))


def the_server(db: Path | None) -> Server:
    """The server of this database; refuses where there is none."""
    server = find_server(db)
    if server is None:
        file = db or DEFAULT_DB
        option = "" if db is None else f" --db {file}"
        raise Refusal(
            f"nobody serves {file}, and only a running host can do this: start one with `understudy serve{option}`",
            Exit.NOBODY_SERVES,
        )
    return server


def _lines(stream: IO[bytes]) -> Iterator[str]:
    try:
        for line in stream:
            yield line.decode("utf-8", "replace").rstrip("\r\n")
    except (OSError, http.client.HTTPException) as error:
        raise ServerGone(f"the stream of events broke off: {error}", Exit.NOBODY_SERVES) from error


def _events(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    """Server-sent events, each as one document with its name; comments and ids are for others."""
    name, data = "message", ""
    for line in lines:
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            data += line.removeprefix("data: ")
        elif not line and data:
            yield {"name": name, **json.loads(data)}
            name, data = "message", ""


def _read(response: Any) -> Answer:
    try:
        document = json.loads(response.read(_LONGEST_ANSWER))
    except ValueError:
        document = {}
    return Answer(response.status, document if isinstance(document, dict) else {})
