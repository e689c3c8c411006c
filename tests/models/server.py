"""A model server for tests: plays a script over real HTTP, in both wire formats, and remembers what was asked."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping
    from types import TracebackType

USAGE = {"input": 100, "cached": 40, "output": 20}
"""What every answer reports: 100 input tokens in all, 40 of them from the cache, and 20 output tokens."""

_USED = {
    "prompt_tokens": USAGE["input"],
    "completion_tokens": USAGE["output"],
    "total_tokens": USAGE["input"] + USAGE["output"],
    "prompt_tokens_details": {"cached_tokens": USAGE["cached"]},
}


@dataclass(frozen=True)
class Say:
    """An answer: pieces of text, then tool calls as (id, name, pieces of the arguments' text)."""

    pieces: Sequence[str] = ()
    calls: Sequence[tuple[str, str, Sequence[str]]] = ()
    stop: str = "end"
    """Or ``length``: cut off by a limit."""


@dataclass(frozen=True)
class Broken:
    """An answer that begins well, and then the socket drops, or the stream ends, or says something else, or hangs."""

    how: Literal["drop", "end", "garbage", "error", "hang"]
    pieces: Sequence[str] = ()
    error: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Fail:
    """An HTTP error with this body."""

    status: int
    body: Mapping[str, Any] | str = field(default_factory=lambda: {"error": {"message": "scripted"}})
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Silence:
    """The request is taken, and nothing is ever said."""


@dataclass(frozen=True)
class Drop:
    """The request is taken, and the socket drops before a word."""


@dataclass(frozen=True)
class Slow:
    """An answer that dawdles: before the headers, and before each piece of text; every byte comes by itself."""

    answer: Say
    before: Callable[[], Awaitable[object]] | None = None
    between: Callable[[], Awaitable[object]] | None = None


@dataclass(frozen=True)
class Flood:
    """An answer of ``size`` characters, made as it is sent: the server's own memory is no part of what is measured.

    ``event`` is one event that holds it all, ``lines`` one of many lines, ``deltas`` many small events,
    ``arguments`` those of one tool call, ``calls`` tool calls without end, ``error`` the body of an HTTP 500.
    """

    what: Literal["event", "lines", "deltas", "arguments", "calls", "error"]
    size: int = 50 * 1024 * 1024


Answer: TypeAlias = Say | Broken | Fail | Silence | Drop | Slow | Flood

FLOOD_PIECE = 16_384
"""Characters in one of a flood's many events."""


@dataclass(frozen=True)
class Asked:
    """One request as it came over the wire."""

    path: str
    headers: Mapping[str, str]
    text: str
    """The body, as it was sent."""

    @property
    def body(self) -> Any:
        return json.loads(self.text)


class ModelServer:
    """Answers the first request with the first entry of the script, and so on.

    ``async with ModelServer([...]) as server``: then ``server.openai_url`` and ``server.anthropic_url``.
    """

    def __init__(self, script: Sequence[Answer]) -> None:
        self._script = list(script)
        self.asked: list[Asked] = []
        self.called = asyncio.Event()
        """The first request is here."""
        self.reached = asyncio.Event()
        """An answer has come to the point where it hangs."""
        self.disconnected = asyncio.Event()
        """The client has left an answer that hung, or that would not end."""
        self.sent = 0
        """Bytes of answers that would not end, until the client left."""
        self.played = asyncio.Event()
        """Every answer of the script has been given."""
        self._port = 0
        self._serving: set[asyncio.Task[None]] = set()

    @property
    def openai_url(self) -> str:
        """What an OpenAI client takes as its base URL."""
        return f"http://127.0.0.1:{self._port}/v1"

    @property
    def anthropic_url(self) -> str:
        """What an Anthropic client takes as its base URL."""
        return f"http://127.0.0.1:{self._port}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.close()
        await self._server.wait_closed()
        await asyncio.gather(*self._serving)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._serving.add(asyncio.ensure_future(self._serve(reader, writer)))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            asked = await _request(reader)
            self.asked.append(asked)
            self.called.set()
            dialect = _anthropic if asked.path.endswith("/messages") else _openai
            answer = self._script[len(self.asked) - 1]
            if isinstance(answer, Drop):
                pass
            elif isinstance(answer, Flood):
                await self._flood(answer, dialect, writer)
            elif isinstance(answer, Fail):
                writer.write(_failure(answer))
                await writer.drain()
            elif isinstance(answer, Say) and not asked.body.get("stream"):
                writer.write(_whole(answer))
                await writer.drain()
            else:
                await self._stream(answer, dialect, reader, writer)
        if len(self.asked) == len(self._script):
            self.played.set()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    async def _stream(
        self,
        answer: Say | Broken | Silence | Slow,
        dialect: Any,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        if isinstance(answer, Silence):
            await self._hang(reader)
            return
        if isinstance(answer, Slow):
            await self._dawdle(answer, dialect, writer)
            return
        writer.write(_STREAM)
        events = dialect(answer if isinstance(answer, Say) else Say(answer.pieces))
        for kind, event in events:
            if isinstance(answer, Broken) and kind == "end":
                break
            _chunk(writer, event)
            await writer.drain()
        if isinstance(answer, Broken):
            if answer.how == "hang":
                await self._hang(reader)
                return
            if answer.how == "drop":
                return
            if answer.how == "garbage":
                _chunk(writer, b'event: content_block_delta\ndata: {"half": \n\n')
            if answer.how == "error":
                _chunk(
                    writer,
                    b"event: error\ndata: " + json.dumps({"type": "error", "error": answer.error}).encode() + b"\n\n",
                )
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    async def _dawdle(self, slow: Slow, dialect: Any, writer: asyncio.StreamWriter) -> None:
        if slow.before is not None:
            self.reached.set()
            await slow.before()
        writer.write(_STREAM)
        for kind, event in dialect(slow.answer):
            if slow.between is not None and kind == "text":
                await slow.between()
            for byte in event:
                _chunk(writer, bytes([byte]))
                await writer.drain()
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    async def _flood(self, flood: Flood, dialect: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(_STREAM if flood.what != "error" else _STREAM.replace(b"200 OK", b"500 Scripted"))
        try:
            # An empty chunk would be the end.
            for part in filter(None, _flooding(flood, dialect)):
                _chunk(writer, part)
                await writer.drain()
                self.sent += len(part)
                # Sockets take megabytes before they are full; the client is to read them as they come.
                await asyncio.sleep(0)
            writer.write(b"0\r\n\r\n")
            await writer.drain()
        except ConnectionError:
            self.disconnected.set()

    async def _hang(self, reader: asyncio.StreamReader) -> None:
        self.reached.set()
        await reader.read()
        self.disconnected.set()


# Chunked, so that a client can tell a dropped connection from an end.
_STREAM = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n"
)


def _flooding(flood: Flood, dialect: Any) -> Iterator[bytes]:
    pieces = flood.size // FLOOD_PIECE
    piece = "x" * FLOOD_PIECE
    if flood.what == "error":
        yield from (piece.encode() for _ in range(pieces))
    elif flood.what == "deltas":
        yield from _events(dialect, Say(_Repeated(piece, pieces)))
    elif flood.what == "arguments":
        yield from _events(dialect, Say(["Writing."], [("t", "now", _Repeated(piece, pieces))]))
    elif flood.what == "calls":
        yield from _events(dialect, Say(["Calling."], _Repeated(("t", "now", ["{}"]), flood.size // 64)))
    else:
        # The one event that holds the text, torn in two where the text stands; and what came before it whole.
        for kind, event in dialect(Say(["Here: ", "@"])):
            head, torn, tail = event.partition(b"@")
            yield head
            if torn and kind == "text":
                between = b"" if flood.what == "event" else b"\ndata: "
                yield from (piece.encode() + between for _ in range(pieces))
            yield tail


def _events(dialect: Any, say: Say) -> Iterator[bytes]:
    return (event for _, event in dialect(say))


class _Repeated(Sequence[Any]):
    """The same again and again, without a list of it."""

    def __init__(self, item: object, times: int) -> None:
        self._item = item
        self._times = times

    def __len__(self) -> int:
        return self._times

    def __getitem__(self, index: int) -> Any:  # type: ignore[override]
        if index >= self._times:
            raise IndexError(index)
        return self._item


def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


async def _request(reader: asyncio.StreamReader) -> Asked:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Asked(head[0].split()[1], headers, body.decode())


def _failure(answer: Fail) -> bytes:
    body = answer.body if isinstance(answer.body, str) else json.dumps(answer.body)
    headers = {
        "content-type": "text/html" if isinstance(answer.body, str) else "application/json",
        "content-length": str(len(body.encode())),
        "connection": "close",
        **answer.headers,
    }
    lines = [f"HTTP/1.1 {answer.status} Scripted", *(f"{name}: {value}" for name, value in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n" + body).encode()


def _whole(answer: Say) -> bytes:
    """The answer in one piece, as OpenAI's format has it, for clients that do not stream."""
    calls = [
        {"id": call_id, "type": "function", "function": {"name": name, "arguments": "".join(pieces)}}
        for call_id, name, pieces in answer.calls
    ]
    message = {"role": "assistant", "content": "".join(answer.pieces), **({"tool_calls": calls} if calls else {})}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}
    body = json.dumps(
        {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": _USED}
    )
    head = (
        f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return (head + body).encode()


def _openai(answer: Say) -> Iterator[tuple[str, bytes]]:
    def chunk(**more: Any) -> bytes:
        base = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": []}
        return b"data: " + json.dumps({**base, **more}).encode() + b"\n\n"

    def choice(delta: dict[str, Any], finish: str | None = None) -> bytes:
        return chunk(choices=[{"index": 0, "delta": delta, "finish_reason": finish}])

    yield "begin", choice({"role": "assistant", "content": ""})
    for piece in answer.pieces:
        yield "text", choice({"content": piece})
    for index, (call_id, name, pieces) in enumerate(answer.calls):
        start = {"index": index, "id": call_id, "type": "function", "function": {"name": name, "arguments": ""}}
        yield "call", choice({"tool_calls": [start]})
        for piece in pieces:
            yield "call", choice({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    finish = "length" if answer.stop == "length" else "tool_calls" if answer.calls else "stop"
    yield "end", choice({}, finish)
    yield "end", chunk(usage=_USED)
    yield "end", b"data: [DONE]\n\n"


def _anthropic(answer: Say) -> Iterator[tuple[str, bytes]]:
    def event(kind: str, **more: Any) -> bytes:
        return f"event: {kind}\ndata: {json.dumps({'type': kind, **more})}\n\n".encode()

    usage = {
        "input_tokens": USAGE["input"] - USAGE["cached"],
        "cache_read_input_tokens": USAGE["cached"],
        "cache_creation_input_tokens": 0,
        "output_tokens": 1,
    }
    message = {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": [], "usage": usage}
    yield "begin", event("message_start", message={**message, "stop_reason": None, "stop_sequence": None})
    yield "begin", event("ping")
    if answer.pieces:
        yield "text", event("content_block_start", index=0, content_block={"type": "text", "text": ""})
    for piece in answer.pieces:
        yield "text", event("content_block_delta", index=0, delta={"type": "text_delta", "text": piece})
    if answer.pieces:
        yield "text", event("content_block_stop", index=0)
    for index, (call_id, name, pieces) in enumerate(answer.calls, 1):
        block = {"type": "tool_use", "id": call_id, "name": name, "input": {}}
        yield "call", event("content_block_start", index=index, content_block=block)
        for piece in pieces:
            yield (
                "call",
                event("content_block_delta", index=index, delta={"type": "input_json_delta", "partial_json": piece}),
            )
        yield "call", event("content_block_stop", index=index)
    stop = "max_tokens" if answer.stop == "length" else "tool_use" if answer.calls else "end_turn"
    delta = {"stop_reason": stop, "stop_sequence": None}
    yield "end", event("message_delta", delta=delta, usage={"output_tokens": USAGE["output"]})
    yield "end", event("message_stop")
