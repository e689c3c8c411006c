"""A plain function as a sub-agent, sync or async."""

from __future__ import annotations

import contextlib
import inspect
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from understudy.actors.handles import AsyncRunHandle, RunHandle
from understudy.protocol import Usage
from understudy.protocol.model import UsageReport
from understudy.protocol.runner import Final, Noted, Touched

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence

    from understudy.actors.runners.contract import RunContext
    from understudy.protocol import Spawn, SpawnPacket
    from understudy.protocol.files import FileMode
    from understudy.protocol.model import Turn
    from understudy.protocol.runner import RunnerEvent

Answer: TypeAlias = str | Final


class _Context:
    """What both kinds of function may do without waiting."""

    def __init__(self, context: RunContext, packet: SpawnPacket) -> None:
        self._context = context
        self._packet = packet

    @property
    def cancelled(self) -> bool:
        """Whether the run is over: stop working, whatever is returned now is dropped."""
        return self._context.cancelled

    @property
    def history(self) -> Sequence[Turn]:
        """What was said so far: the task, or in a follow-up everything before it too."""
        return self._context.history

    def progress(self, text: str) -> None:
        """Say how it goes."""
        self._emit(Noted(text))

    def touch(self, path: str | Path, mode: FileMode = "read", *, ok: bool = True) -> None:
        """Hand in a receipt: this file was read, written or edited."""
        self._emit(Touched(str(path), mode, ok))

    def usage(self, *, input_tokens: int = 0, output_tokens: int = 0, cost_usd: float = 0.0) -> None:
        """Report what was consumed since the last report; it counts against every budget above."""
        self._emit(UsageReport(Usage(input_tokens=input_tokens, output_tokens=output_tokens, cost_usd=cost_usd)))

    def steered(self) -> list[str]:
        """New instructions that came since the last call."""
        return self._context.steered()

    def _emit(self, event: RunnerEvent) -> None:
        self._context.emit(event)

    def _resolve(self, path: str | Path) -> Path:
        return Path(self._packet.cwd, path)


class AsyncFunctionContext(_Context):
    """What an async function gets beside its packet."""

    async def read_file(self, path: str | Path) -> str:
        """The text of a file, relative to the run's cwd; counts as touched."""
        text = await self._context.blocking(lambda: self._resolve(path).read_text(encoding="utf-8"))
        self.touch(path)
        return text

    async def spawn(self, spawn: Spawn) -> AsyncRunHandle:
        """Delegate to a child of this run; returns once that is durable."""
        return AsyncRunHandle(await self._context.spawn(spawn), self._context.backstage)


class FunctionContext(_Context):
    """What a sync function gets beside its packet. It runs on a thread, and may block."""

    def read_file(self, path: str | Path) -> str:
        """The text of a file, relative to the run's cwd; counts as touched."""
        text = self._resolve(path).read_text(encoding="utf-8")
        self.touch(path)
        return text

    def spawn(self, spawn: Spawn) -> RunHandle:
        """Delegate to a child of this run; returns once that is durable."""
        with self._waiting():
            run = self._context.backstage.kernel.run_from_thread(self._context.spawn(spawn))
        return RunHandle(run, self._context.backstage, waiting=self._waiting)

    def _emit(self, event: RunnerEvent) -> None:
        # Each is one callback of the loop, and the function's return is a later one: the order holds.
        self._context.backstage.kernel.asyncio_loop.call_soon_threadsafe(self._context.emit, event)

    @contextlib.contextmanager
    def _waiting(self) -> Iterator[None]:
        """While this thread waits for others, a manual clock need not wait for this thread."""
        self._context.backstage.clock.work_finished()
        try:
            yield
        finally:
            self._context.backstage.clock.work_started()


class FunctionRunner:
    """Runs ``fn(packet, context)``; what it returns is the answer, what it raises is the failure.

    Example:
        >>> def count_lines(packet, context):
        ...     return str(len(context.read_file("README.md").splitlines()))
        >>> runner = FunctionRunner(count_lines)
    """

    def __init__(
        self,
        fn: Callable[[SpawnPacket, FunctionContext], Answer]
        | Callable[[SpawnPacket, AsyncFunctionContext], Awaitable[Answer]],
    ) -> None:
        self._fn: Callable[[SpawnPacket, Any], Any] = fn
        # The function itself, inside decorators and partials; or the method that makes an object callable.
        called = inspect.unwrap(fn), getattr(fn, "__call__", None)  # noqa: B004 - the method itself
        self._is_async = any(map(inspect.iscoroutinefunction, called))

    def run(self, packet: SpawnPacket, context: RunContext) -> AsyncIterator[RunnerEvent]:
        """Call the function once."""
        if self._is_async:
            return _OneAnswer(self._fn(packet, AsyncFunctionContext(context, packet)))
        blocking = partial(self._fn, packet, FunctionContext(context, packet))
        return _OneAnswer(context.blocking(blocking))


class _OneAnswer:
    """Events that are one answer. Not a generator: the event loop keeps books on each of those."""

    __slots__ = ("_work",)

    def __init__(self, work: Awaitable[Answer]) -> None:
        self._work: Awaitable[Answer] | None = work

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RunnerEvent:
        work, self._work = self._work, None
        if work is None:
            raise StopAsyncIteration
        answer = await work
        if isinstance(answer, str):
            return Final(answer)
        if isinstance(answer, Final):
            return answer
        raise TypeError(f"the function returned {type(answer).__name__}: return a str or a Final")
