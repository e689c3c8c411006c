"""What the tests of HTTP start from: a real server on a free port of the loopback, in a thread with its own loop."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import httpx

from understudy.actors import AsyncRuntime, FunctionRunner
from understudy.gateway.http import Feed, create_token, serving
from understudy.protocol import RuntimeConfig

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping

    from understudy.actors.runners import AsyncFunctionContext
    from understudy.gateway.http import HookHandler
    from understudy.protocol import SpawnPacket

T = TypeVar("T")
MAIN = "agent:atlas:main"
PATIENCE = 30.0
_NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Reading the machine's authorities takes a client longer than most of these tests."""


async def answer(packet: SpawnPacket, context: AsyncFunctionContext) -> str:
    return f"done: {packet.task}"


async def hang(packet: SpawnPacket, context: AsyncFunctionContext) -> str:
    await asyncio.get_running_loop().create_future()
    return "never"


@dataclass
class Served:
    """A running server, and the runtime behind it."""

    url: str
    database: Path
    token: str
    runtime: AsyncRuntime
    feed: Feed
    loop: asyncio.AbstractEventLoop

    def client(self, token: str | None = None) -> httpx.Client:
        """Somebody with a token, by default the one for everything."""
        headers = {"authorization": f"Bearer {token or self.token}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=PATIENCE, trust_env=False, verify=_NO_TLS)

    def bound(self, agent_id: str) -> httpx.Client:
        """Somebody with a token for one agent's things."""
        return self.client(create_token(self.database, agent_id=agent_id))

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Something on the runtime's own loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(PATIENCE)

    def session(self, key: str = MAIN, **options: Any) -> None:
        """Open one of the host's sessions."""
        self.do(self.runtime.session(key, **options))

    def spawned(self, task: str = "count", key: str = MAIN, **spawn: Any) -> dict[str, Any]:
        """A sub-agent of a session that is made for it if need be."""
        with self.client() as client:
            answer = client.post(f"/api/sessions/{key}/spawn?create=true", json={"task": task, **spawn})
        assert answer.status_code == 202, answer.text
        return dict(answer.json())

    def finished(self, task: str = "count", key: str = MAIN, **spawn: Any) -> dict[str, Any]:
        """The same, once its result is merged."""
        accepted = self.spawned(task, key, **spawn)

        async def settled() -> None:
            await self.runtime.run(accepted["run_id"]).result()

        self.do(settled())
        return accepted

    def cursor(self) -> str:
        """Where the stream of events stands now."""
        with Listener(self) as listener:
            return listener.seen


@contextlib.contextmanager
def served(
    folder: Path,
    *,
    runners: Mapping[str, Callable[..., Awaitable[str]]] | None = None,
    config: Mapping[str, Any] | None = None,
    feed: Mapping[str, Any] | None = None,
    port: int = 0,
    reception: Callable[[AsyncRuntime], HookHandler] | None = None,
    **options: Any,
) -> Iterator[Served]:
    """A server on a database of its own in ``folder``; ``reception`` makes what takes its hooks in."""
    database = folder / "agents.db"
    everybody = {"default": answer, "hang": hang, **(runners or {})}
    ready = threading.Event()
    found: list[Served] = []
    failed: list[BaseException] = []
    stop: list[asyncio.Event] = []

    async def host() -> None:
        loop = asyncio.get_running_loop()
        stopped = asyncio.Event()
        runtime = AsyncRuntime(
            database,
            runners={name: FunctionRunner(who) for name, who in everybody.items()},
            config=RuntimeConfig(**{"max_children_per_agent": 1_000, **(config or {})}),
        )
        async with runtime:
            stream = Feed(runtime, **(feed or {}))
            if reception is not None:
                options["hooks"] = reception(runtime)
            async with serving(runtime, database, port=port, feed=stream, **options) as here:
                token = Path(here.token_file).read_text(encoding="ascii").strip()  # noqa: ASYNC240 - a line of text
                found.append(Served(here.url, database, token, runtime, stream, loop))
                stop.append(stopped)
                ready.set()
                await stopped.wait()

    def run() -> None:
        try:
            asyncio.run(host())
        except BaseException as error:  # noqa: BLE001 - the test's thread raises it
            failed.append(error)
        finally:
            ready.set()

    thread = threading.Thread(target=run, name="served")
    thread.start()
    try:
        assert ready.wait(PATIENCE)
        if failed:
            raise failed[0]
        yield found[0]
    finally:
        if stop:
            found[0].loop.call_soon_threadsafe(stop[0].set)
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert not failed, failed


class Listener:
    """Somebody on the event stream, who reads as many events as asked."""

    def __init__(
        self, served: Served, last_seen: str | None = None, *, client: httpx.Client | None = None, **query: Any
    ) -> None:
        self._client = client or served.client()
        headers = {} if last_seen is None else {"last-event-id": last_seen}
        self._stream = self._client.stream("GET", "/api/events", headers=headers, params=query)
        self.seen = last_seen or ""
        self.comments: list[str] = []

    def __enter__(self) -> Self:
        self.response = self._stream.__enter__()
        assert self.response.status_code == 200, self.response.read()
        self._lines = self.response.iter_lines()
        self._block()  # the welcome, or the gap before it
        return self

    def __exit__(self, *error: object) -> None:
        self._stream.__exit__(*error)  # type: ignore[arg-type]
        self._client.close()

    def _block(self) -> dict[str, str]:
        """The next block of the stream."""
        block: dict[str, str] = {}
        for line in self._lines:
            if not line:
                break
            name, _, value = line.partition(": ")
            if name:
                block[name] = value
            else:
                self.comments.append(value)
        else:
            raise EOFError
        self.seen = block.get("id", self.seen)
        self.last = block
        return block

    def next(self) -> tuple[str, dict[str, Any]]:
        """The next event: its name and its data."""
        while "event" not in (block := self._block()):
            pass
        return block["event"], json.loads(block["data"])

    def until(self, name: str) -> list[tuple[str, dict[str, Any]]]:
        """Everything up to the first event of that name, which is the last of them."""
        events = [self.next()]
        while events[-1][0] != name:
            events.append(self.next())
        return events
