"""The server of a database, found by the file beside it. Imports next to nothing: a hook that looks for it is quick."""

from __future__ import annotations

import json
import os

_SCHEME = "http://"
_LOOPBACK = {"127.0.0.1", "[::1]", "localhost"}
_HIGHEST_PORT = 65_535
# Fields of /proc/PID/stat after the command's closing parenthesis; the start time is the 22nd of all.
_START_TIME = 19


class Nearby:
    """A server on this machine, of this user."""

    __slots__ = ("host", "pid", "port", "token_file")

    def __init__(self, host: str, port: int, pid: int, token_file: str) -> None:
        self.host = host
        self.port = port
        self.pid = pid
        self.token_file = token_file

    @property
    def url(self) -> str:
        """Where it is asked."""
        return f"{_SCHEME}{self.host}:{self.port}"


def nearby(database: str) -> Nearby | None:
    """Whoever says to serve this database; None when nobody does, or the process that did is gone."""
    try:
        said = json.loads(own_text(f"{os.path.abspath(database)}.server"))  # noqa: PTH100 - pathlib takes its time
        url = str(said["url"]).rstrip("/")
        host, _, port = url.removeprefix(_SCHEME).rpartition(":")
        found = Nearby(host, int(port), int(said["pid"]), str(said["token_file"]))
        began = int(said["process_started"])
    except (OSError, ValueError, TypeError, KeyError):
        return None
    here = url.startswith(_SCHEME) and host in _LOOPBACK and 0 < found.port <= _HIGHEST_PORT
    return found if here and began == _process_started(found.pid) else None


def own_text(file: str) -> str:
    """What stands in a file of ours; another user's could name a server that is after our token."""
    with open(file, encoding="utf-8") as opened:  # noqa: PTH123 - likewise
        if os.fstat(opened.fileno()).st_uid != os.geteuid():
            raise PermissionError(f"{file} is somebody else's")
        return opened.read()


def _process_started(pid: int) -> int:
    """As `understudy.actors.host` has it, which brings the whole runtime along."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:  # noqa: PTH123 - likewise
            return int(stat.read().rpartition(")")[2].split()[_START_TIME])
    except OSError:
        return 0
