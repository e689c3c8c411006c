"""Serving: one runtime, one uvicorn on the same loop, and an orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import os
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import uvicorn

from understudy.actors import AsyncRuntime
from understudy.actors._kernel.loop import DEFAULT_GRACE
from understudy.actors.host import process_started
from understudy.gateway.http.app import create_app
from understudy.gateway.http.door import PATIENCE_SECONDS, Rules
from understudy.gateway.http.feed import Feed
from understudy.gateway.http.tokens import owner_token, tokens_of
from understudy.gateway.http.whereabouts import Whereabouts, announced, running_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping

    from understudy.actors import Runner
    from understudy.gateway.http.hooks import HookHandler
    from understudy.protocol import RuntimeConfig

logger = logging.getLogger("understudy")

LOOPBACK = "127.0.0.1"
DEFAULT_PORT = 8427
_LARGEST_HEAD = 32_768


class NotServedError(RuntimeError):
    """The server was not started; the message says what to do."""


class _Server(uvicorn.Server):
    """uvicorn, except that signals are the host's and that streams end when it stops."""

    def __init__(self, config: uvicorn.Config, feed: Feed) -> None:
        super().__init__(config)
        self._feed = feed
        self.ready = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Uvicorn would raise the signal again when it is done, and so before the runtime has ended."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept from now on."""
        await super().startup(sockets)
        self.ready.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more, end the streams, let other answers finish."""
        for server in self.servers:
            server.close()
        self._feed.close()  # a stream has no end of its own: uvicorn would wait for it
        await super().shutdown(sockets)


@contextlib.asynccontextmanager
async def serving(
    runtime: AsyncRuntime,
    database: Path | str,
    *,
    host: str = LOOPBACK,
    port: int = DEFAULT_PORT,
    remote: bool = False,
    names: Iterable[str] = (),
    origins: Iterable[str] = (),
    hooks: HookHandler | None = None,
    feed: Feed | None = None,
    patience: float = PATIENCE_SECONDS,
    grace: float = DEFAULT_GRACE,
) -> AsyncIterator[Whereabouts]:
    """Serve an open runtime on its own loop while inside; ``database`` is where its token and its address stand.

    ``port`` 0 takes a free one. Another ``host`` than the loopback's needs ``remote``. ``names`` are further
    ``name:port`` by which requests may call this server, ``origins`` further pages whose scripts may ask. A request
    may take ``patience`` seconds, and what is under way at the end ``grace``.
    """
    database = _absolute(database)
    _refuse_a_second(database)
    feed = feed or Feed(runtime)
    with _bound(host, port, remote=remote) as listener:
        address, port = listener.getsockname()[:2]
        shown = f"[{address}]" if ":" in address else address
        allowed = {f"{shown}:{port}", *(name.lower() for name in names)}
        if ipaddress.ip_address(address).is_loopback:
            allowed |= {f"localhost:{port}", f"{LOOPBACK}:{port}", f"[::1]:{port}"}
        rules = Rules(hosts=frozenset(allowed), origins=frozenset(origins), patience=patience)
        token_file = owner_token(database)
        app = create_app(runtime, tokens=tokens_of(database), rules=rules, hooks=hooks, feed=feed)
        config = uvicorn.Config(
            app,
            http="h11",
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            h11_max_incomplete_event_size=_LARGEST_HEAD,
            timeout_graceful_shutdown=max(1, round(grace)),
        )
        here = Whereabouts(f"http://{shown}:{port}", os.getpid(), process_started(os.getpid()), str(token_file))
        server = _Server(config, feed)
        running = asyncio.ensure_future(server.serve(sockets=[listener]))
        ready = asyncio.ensure_future(server.ready.wait())
        try:
            await asyncio.wait({running, ready}, return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                await running
                raise NotServedError("the server did not start: its log says why")
            with announced(database, here):
                logger.info("serving %s at %s; the token is in %s", database, here.url, token_file)
                yield here
        finally:
            ready.cancel()
            server.should_exit = True
            await running


async def serve(
    database: Path | str,
    *,
    runners: Mapping[str, Runner] | None = None,
    config: RuntimeConfig | None = None,
    hooks: Callable[[AsyncRuntime], HookHandler] | None = None,
    ready: Callable[[Whereabouts], None] | None = None,
    host: str = LOOPBACK,
    port: int = DEFAULT_PORT,
    remote: bool = False,
    names: Iterable[str] = (),
    origins: Iterable[str] = (),
    grace: float = DEFAULT_GRACE,
) -> None:
    """Open a runtime on ``database`` and serve it until SIGTERM or Ctrl-C; then end it within its grace.

    ``hooks`` makes the harness side once the runtime is open; ``ready`` is told where the server is. The rest is
    as for `serving`.
    """
    _refuse_a_second(_absolute(database))  # before anything of it is opened
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    try:
        runtime = AsyncRuntime(database, runners=runners, config=config)
        async with (
            runtime,
            serving(
                runtime,
                database,
                host=host,
                port=port,
                remote=remote,
                names=names,
                origins=origins,
                hooks=None if hooks is None else hooks(runtime),
                grace=grace,
            ) as here,
        ):
            if ready is not None:
                ready(here)
            await stopped.wait()
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def _refuse_a_second(database: Path) -> None:
    there = running_server(database)
    if there is not None:
        raise NotServedError(f"{database} is served already, at {there.url} (pid {there.pid}): use that, or stop it")


def _absolute(path: Path | str) -> Path:
    return Path(path).absolute()


def _bound(host: str, port: int, *, remote: bool) -> socket.socket:
    """A socket at that address, which is this machine's own unless ``remote`` says otherwise."""
    try:
        address = ipaddress.ip_address(LOOPBACK if host == "localhost" else host)
    except ValueError:
        raise NotServedError(f"host {host!r} is not allowed: use an IP address, such as {LOOPBACK}") from None
    if not address.is_loopback and not remote:
        raise NotServedError(f"host {host} can be reached from elsewhere: allow that explicitly, or use {LOOPBACK}")
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET  # noqa: PLR2004 - of IP
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((str(address), port))
    except (OSError, OverflowError) as error:
        listener.close()
        raise NotServedError(f"port {port} of {host} cannot be used ({error}): take another, or 0 for any") from None
    return listener
