"""Runs the real CLIs against the scripted server, as sub-agents and on their own with hooks; prints what held."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
import traceback
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hooked
from hooked import Hooked, Listened
from server import Server
from stage import REFUSED, dress

from understudy.actors import AsyncRuntime, CliRunner
from understudy.actors.runners.cli import PROFILES, inspect_clis
from understudy.protocol import EndReason, Spawn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stage import Part

    from understudy.actors import AsyncSession
    from understudy.protocol import SubAgentResult

CHECKS = ("tool round trip", "file in context", "resumes", "kill, no survivor", "API error")
_SESSION = "agent:real-clis:main"
_PATIENCE = 60.0


class Play:
    """One CLI in a folder of its own."""

    def __init__(self, name: str, folder: Path) -> None:
        self.home, self.project, self.store = folder / "home", folder / "project", folder / "agents.db"
        self.mark = uuid.uuid4().hex
        self.home.mkdir()
        self.project.mkdir()
        (self.project / "hello.txt").write_text("the quick brown fox\n")
        self.name = name
        self.held: dict[str, str] = {}

    async def run(self) -> dict[str, str]:
        """Every check, whatever became of the one before."""
        with Server({}) as server:
            part = dress(self.name, server.url, self.home, self.project, "tail -f /dev/null")
            server.scenes = part.scenes()
            # By the host's environment: what a spawn brings along and looks like a secret is not stored, and so not
            # there for a follow-up in another host.
            os.environ.update(self._variables(part))
            runner = CliRunner(self.name, arguments=part.arguments, pass_env=tuple(self._variables(part)))
            async with AsyncRuntime(self.store, runners={"cli": runner}) as runtime:
                session = await runtime.session(_SESSION, workspace=str(self.project), runner="cli")
                result = await self._spawn(session, "tool")
                ok = result.end_reason is EndReason.COMPLETED and "scenes: tool" in result.output
                self._note("tool round trip", ok, result)
                files = session.working_context.recent_files
                self._note("file in context", str(self.project / part.touched) in files, files)
                await self._kill(runtime, session)
                refused = await self._spawn(session, "refused")
                because = "" if refused.failure is None else refused.failure.message
                ok = refused.end_reason is EndReason.FAILED and REFUSED in because
                self._note("API error", ok, refused)
            # The host is gone; another one finds the conversation in the store.
            async with AsyncRuntime(self.store, runners={"cli": runner}) as runtime:
                session = await runtime.session(_SESSION)
                again = await session.follow_up(result.session_key, "Play [[scene:again]]", wait=_PATIENCE + 10)
            known = "scenes: tool then again"
            self._note("resumes", known in getattr(again, "output", ""), again)
        return self.held

    def _note(self, check: str, held: bool, seen: object) -> None:
        self.held[check] = "yes" if held else "NO"
        if not held:
            print(f"{self.name}: {check}: {seen}", file=sys.stderr)

    def _variables(self, part: Part) -> dict[str, str]:
        return {**part.env, "HOME": str(self.home), "TMPDIR": str(self.home), "UNDERSTUDY_MARK": self.mark}

    def _asked(self, scene: str) -> Spawn:
        return Spawn(task=f"Play [[scene:{scene}]]", cleanup="keep", timeout_ms=int(_PATIENCE * 1000))

    async def _spawn(self, session: AsyncSession, scene: str) -> SubAgentResult:
        handle = await session.spawn(self._asked(scene))
        return await handle.result(timeout=_PATIENCE + 10)

    async def _kill(self, runtime: AsyncRuntime, session: AsyncSession) -> None:
        handle = await session.spawn(self._asked("shell"))
        give_up = time.monotonic() + _PATIENCE
        in_tool: list[int] = []
        while not in_tool and time.monotonic() < give_up:
            await asyncio.sleep(0.05)
            in_tool = [pid for pid in _marked(self.mark) if _is_the_tool(pid)]
        lived = list(_marked(self.mark))
        await session.kill(handle.run_id)
        result = await handle.result(timeout=30)
        proofs: list[Any] = []
        while not proofs and time.monotonic() < give_up:
            await asyncio.sleep(0.05)
            proofs = _proofs(runtime, handle.run_id)
        left = list(_marked(self.mark))
        ok = bool(in_tool) and result.end_reason is EndReason.KILLED and not left
        self._note("kill, no survivor", ok, f"in the tool {in_tool}, lived {lived}, left {left}, {proofs}")
        if ok:
            self.held["kill, no survivor"] = f"yes, {len(lived)} dead"


def _proofs(runtime: AsyncRuntime, run_id: str) -> list[Any]:
    return [event.data for event in runtime.store.runs.events(run_id) if "proof" in event.data]


def _marked(mark: str) -> Iterator[int]:
    """Living processes that were given the mark, whoever their parent is by now."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                alive = folder.joinpath("stat").read_text().rpartition(")")[2].split()[0] not in {"Z", "X"}
                if alive and f"UNDERSTUDY_MARK={mark}".encode() in folder.joinpath("environ").read_bytes():
                    yield int(folder.name)
            except OSError:
                continue


def _is_the_tool(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"tail\x00-f\x00/dev/null\x00")
    except OSError:
        return False


def main() -> int:
    """Play all that are asked for; 1 where anything did not hold."""
    parser = argparse.ArgumentParser(description="Run the real agent CLIs as sub-agents.")
    parser.add_argument("clis", nargs="*", choices=[*PROFILES, []], help="all of them by default")
    asked = parser.parse_args().clis or list(PROFILES)
    installed = {report.name: report for report in inspect_clis()}
    rows = [("CLI", "version", *CHECKS)]
    for name in asked:
        report = installed[name]
        if report.version is None:
            rows.append((name, "not installed", *("skipped" for _ in CHECKS)))
            continue
        with tempfile.TemporaryDirectory(prefix=f"understudy-{name}-", ignore_cleanup_errors=True) as folder:
            play = Play(name, Path(folder).resolve())
            try:
                asyncio.run(play.run())
            except Exception:  # noqa: BLE001 - the others are played all the same
                traceback.print_exc()
        rows.append((name, report.version, *(play.held.get(check, "NO") for check in CHECKS)))
    _print(rows)
    told = [("HOOKS", *hooked.CHECKS), *_play_hooks([name for name in asked if installed[name].version is not None])]
    if len(told) > 1:
        _print(told)
    return 1 if any("NO" in row for row in (*rows, *told)) else 0


def _play_hooks(names: list[str]) -> Iterator[tuple[str, ...]]:
    """The CLIs that tell of their own sessions."""
    plays = {
        "claude": (lambda folder: Hooked(folder, over_http=False), lambda folder: Hooked(folder, over_http=True)),
        "opencode": (Listened,),
    }
    for name in names:
        for begin in plays.get(name, ()):
            with tempfile.TemporaryDirectory(prefix="understudy-hooks-", ignore_cleanup_errors=True) as folder:
                play = begin(Path(folder).resolve())
                try:
                    play.run()
                except Exception:  # noqa: BLE001 - the others are played all the same
                    traceback.print_exc()
            yield (play.name, *(play.held.get(check, "NO") for check in hooked.CHECKS))


def _print(rows: list[tuple[str, ...]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print(" | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)))


if __name__ == "__main__":
    sys.exit(main())
