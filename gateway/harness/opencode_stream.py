"""Listening to a running OpenCode: its stream of events, taken up again whenever it breaks off."""

from __future__ import annotations

import http.client
import ipaddress
import json
import logging
import socket
import threading
from base64 import b64encode
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from understudy.gateway.harness.opencode import OpenCodeEvents
from understudy.persistence import StoreClosedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from understudy.gateway.harness.continuity import Continuity

logger = logging.getLogger("understudy")

FIRST_WAIT, LONGEST_WAIT = 0.5, 30.0
"""Seconds between two tries: twice as many each time, until something was heard."""
_SILENCE = 60.0
"""Seconds without a word after which a connection is taken for dead: a heartbeat comes every ten."""
_LONGEST_STOP = 5.0
_LONGEST_LINE = 8 * 2**20
_MOST_SESSIONS = 1_000


class OpenCodeFollower:
    """Takes in what one OpenCode server tells of its sessions, on a thread of its own.

    ``url`` is where ``opencode serve`` listens, on this machine; ``password`` what its OPENCODE_SERVER_PASSWORD is.
    """

    def __init__(
        self,
        url: str,
        continuity: Continuity,
        *,
        password: str | None = None,
        wait: Callable[[float], bool] | None = None,
    ) -> None:
        self._host, self._port = of_this_machine(url)
        self._url = url
        self._continuity = continuity
        self._headers = {} if password is None else {"Authorization": f"Basic {_basic(password)}"}
        self._stopped = threading.Event()
        self._wait = wait or self._stopped.wait
        self._connection: http.client.HTTPConnection | None = None
        self._thread = threading.Thread(target=self.run, name="understudy-opencode", daemon=True)

    def start(self) -> None:
        """Begin to listen; returns at once, whether there is a server yet or not."""
        self._thread.start()

    def stop(self) -> None:
        """Listen no more."""
        self._stopped.set()
        connection = self._connection
        if connection is not None and connection.sock is not None:
            with suppress(OSError):
                connection.sock.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads from it
        if self._thread.is_alive():
            self._thread.join(_LONGEST_STOP)

    def run(self) -> None:
        """Listen until it is stopped, or the store is closed."""
        wait, told = FIRST_WAIT, False
        while not self._stopped.is_set():
            try:
                for _ in self._listen():
                    wait, told = FIRST_WAIT, False
            except StoreClosedError:
                return
            except Exception as error:  # noqa: BLE001 - whatever another program says, or the store: it is tried again
                if not told and not self._stopped.is_set():
                    logger.warning("OpenCode at %s is not heard (%s): trying on", self._url, error)
                told = True
            if self._wait(wait):
                return
            wait = min(wait * 2, LONGEST_WAIT)

    def _listen(self) -> Iterator[None]:
        """Take events in, one by one, until the stream ends."""
        events = OpenCodeEvents()
        with closing(http.client.HTTPConnection(self._host, self._port, timeout=_SILENCE)) as connection:
            self._connection = connection
            stream = self._answer(connection, "/event")
            # Events wait meanwhile: sessions that began before are known before anything is heard of them.
            for info in self._sessions():
                self._take_in(events, {"type": "session.created", "properties": {"info": info}})
            while line := stream.readline(_LONGEST_LINE):
                if line.startswith(b"data:"):
                    with suppress(ValueError, RecursionError):
                        self._take_in(events, json.loads(line[5:]))
                    yield
        raise ConnectionError("it has ended its stream")

    def _sessions(self) -> list[Any]:
        with closing(http.client.HTTPConnection(self._host, self._port, timeout=_SILENCE)) as connection:
            found = json.loads(self._answer(connection, "/session").read(_LONGEST_LINE))
        known = [info for info in found if isinstance(info, dict)] if isinstance(found, list) else []
        # As they are given the newest are the first; a parent has to be known before its children.
        return sorted(known[:_MOST_SESSIONS], key=_created)

    def _answer(self, connection: http.client.HTTPConnection, path: str) -> http.client.HTTPResponse:
        connection.request("GET", path, headers=self._headers)
        answer = connection.getresponse()
        if answer.status != http.client.OK:
            raise ConnectionError(f"it answers {answer.status} to {path}")
        return answer

    def _take_in(self, events: OpenCodeEvents, event: Any) -> None:
        sighting = events.read(event) if isinstance(event, dict) else None
        if sighting is not None:
            self._continuity.observe(sighting)


def _created(info: Mapping[str, Any]) -> int:
    time = info.get("time")
    created = time.get("created") if isinstance(time, dict) else None
    return created if isinstance(created, int) else 0


def of_this_machine(url: str) -> tuple[str, int]:
    """Where to connect to; nothing but this machine is asked."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or 80
        here = host == "localhost" or ipaddress.ip_address(host).is_loopback
        plain = parts.scheme == "http" and parts.path in {"", "/"} and not (parts.query or parts.username)
    except ValueError:
        here = plain = False
        host, port = "", 0
    if not (here and plain):
        raise ValueError(f"{url!r} is no address of this machine: write it as http://127.0.0.1:4096")
    return host, port


def _basic(password: str) -> str:
    return b64encode(f"opencode:{password}".encode()).decode("ascii")
