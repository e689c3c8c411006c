"""What a harness runs at each of its events: hands the payload to the server, and prints what the harness is told.

Whatever is wrong (no server, a slow one, a payload that is none), it exits with 0 and says nothing, within its budget:
a harness must never wait for us, or show somebody an error of ours. Most of what it costs is the start of Python, so
it imports next to nothing.
"""

from __future__ import annotations

import json
import os

from understudy.gateway.nearby import nearby, own_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    import socket
    from collections.abc import Sequence
else:  # without their enums: half of what is imported here would be theirs
    import _signal as signal
    import _socket as socket

BUDGET_SECONDS = 1.7
"""For everything after Python has started; that is the rest of two seconds."""

_LARGEST = 64 * 2**20
_PIECE = 65_536
# What the server wants to know. A hook after a tool is also told all that the tool said, which can be larger than a
# request may be.
_FIELDS = (
    *("session_id", "transcript_path", "cwd", "hook_event_name", "source", "prompt"),
    *("agent_id", "agent_type", "agent_transcript_path", "last_assistant_message", "tool_name", "tool_use_id"),
)
_PARTS = {"tool_input": ("file_path", "notebook_path", "path"), "tool_response": ("agentId",)}
# Longer words are left to the transcript.
_LONGEST = 131_072


def main(arguments: Sequence[str], *, budget: float = BUDGET_SECONDS) -> None:
    """Run the hook that the arguments name, and exit: ``HARNESS EVENT --db PATH [--token-file FILE]``."""
    signal.signal(signal.SIGALRM, lambda *_: os._exit(0))
    signal.setitimer(signal.ITIMER_REAL, budget)
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # not even Python itself has a word to say
        answer = _ask(arguments)
        signal.setitimer(signal.ITIMER_REAL, 0)  # from here on all of it is said
        while answer:
            answer = answer[os.write(1, answer) :]
    finally:
        os._exit(0)  # whatever went wrong is not the harness's business, and so not shown to anybody


def _ask(arguments: Sequence[str]) -> bytes:
    """What the server answers, if it has something to tell."""
    harness, event, *rest = arguments
    options = dict(zip(rest[::2], rest[1::2], strict=True))
    server = nearby(options["--db"])
    if server is None or not f"{harness}{event}".replace("-", "").isalnum():
        return b""
    token = own_text(options.get("--token-file", server.token_file)).strip()
    body = json.dumps(_wanted(json.loads(_all_of(0)))).encode()
    head = (
        f"POST /api/hooks/{harness}/{event} HTTP/1.1\r\nHost: {server.host}:{server.port}\r\n"
        f"Authorization: Bearer {token}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        "Connection: close\r\n\r\n"
    )
    family, host = (socket.AF_INET6, "::1") if server.host == "[::1]" else (socket.AF_INET, "127.0.0.1")
    connection = socket.socket(family, socket.SOCK_STREAM)  # closed by our end, which is near
    connection.connect((host, server.port))
    connection.sendall(head.encode("ascii") + body)
    begun, _, told = _all_of(connection.fileno()).partition(b"\r\n\r\n")
    status, _, fields = begun.partition(b"\r\n")
    whole = f"\r\ncontent-length: {len(told)}\r\n".encode() in b"\r\n" + fields.lower() + b"\r\n"
    answer = json.loads(told) if whole and status.split()[1:2] == [b"200"] else None
    return told + b"\n" if isinstance(answer, dict) and answer else b""


def _wanted(payload: dict[str, object]) -> dict[str, object]:
    """What is passed on of a payload."""
    wanted: dict[str, object] = {}
    for name in _FIELDS:
        value = payload.get(name)
        if isinstance(value, str) and len(value) <= _LONGEST:
            wanted[name] = value
    for name, parts in _PARTS.items():
        value = payload.get(name)
        if isinstance(value, dict):
            wanted[name] = {part: value[part] for part in parts if isinstance(value.get(part), str)}
    return wanted


def _all_of(source: int) -> bytes:
    """Everything up to the end of a pipe or a connection."""
    pieces: list[bytes] = []
    left = _LARGEST
    while piece := os.read(source, min(left, _PIECE)):
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces) if left else b""
