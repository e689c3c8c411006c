"""An agent CLI as a sub-agent: one process a run, its stream as events, its end as the run's."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from understudy.actors.processes import PASSED_ON, child_environment, launch
from understudy.actors.runners.cli.locating import Program
from understudy.actors.runners.cli.profile import CliProfile, too_long
from understudy.actors.runners.cli.profiles import known_profile
from understudy.actors.runners.cli.silence import Silence
from understudy.actors.runners.cli.verdict import failure, verdict
from understudy.persistence import Redactor
from understudy.protocol.prompt import brief, system_prompt
from understudy.protocol.usage import NO_USAGE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from understudy.actors.processes import Process
    from understudy.actors.runners.contract import RunContext
    from understudy.actors.runners.resumption import Resumable
    from understudy.protocol import Spawn, SpawnPacket
    from understudy.protocol.runner import RunnerEvent

# A shorter value of the environment is a switch or a word, not a key.
_SECRET_LENGTH = 8
_OWN_SESSION = "UNDERSTUDY_SESSION"
"""Tells `understudy mcp`, where the CLI starts that, whose sub-agent it speaks for."""
_CONTINUE = "You were interrupted. Go on with your task where you left off, and end with your final answer."


class CliRunner:
    """Runs an agent CLI: one that is known by name, or any that a `CliProfile` describes.

    The process gets the few variables every process needs, what the profile needs to find its own files, and the
    spawn's ``env``. Of the host's credentials it gets those named in ``pass_env``. ``arguments`` are added to its
    command line: what it may do without asking is for the host to say. ``system`` is what the host says to every
    agent of this kind.

    Example:
        >>> runner = CliRunner("claude", pass_env=("ANTHROPIC_API_KEY",), arguments=("--allowedTools", "Edit"))
        >>> runner.profile.install
        'npm install -g @anthropic-ai/claude-code@latest'
    """

    def __init__(
        self,
        profile: str | CliProfile,
        *,
        arguments: Iterable[str] = (),
        pass_env: Iterable[str] = (),
        system: str | None = None,
    ) -> None:
        self.profile = profile if isinstance(profile, CliProfile) else known_profile(profile)
        self._arguments = tuple(arguments)
        self._pass_env = tuple(pass_env)
        self._system = system
        self._program = Program(self.profile)

    def refusal(self, spawn: Spawn) -> str | None:  # noqa: ARG002 - it is the program that is missing, not something asked for
        """Why it cannot be spawned here: it is not installed."""
        return self._program.missing() if self._program.path(time.monotonic()) is None else None

    async def run(self, packet: SpawnPacket, context: RunContext) -> AsyncIterator[RunnerEvent]:
        """The CLI's work, from its first event to its end; nothing of it lives on, whichever way this ends."""
        profile, resumable = self.profile, context.resumable
        program = self._program.path(time.monotonic())
        refusal = self._program.missing() if program is None else self._why_not(packet, resumable)
        if refusal is not None or program is None:
            yield failure("runner_crash", refusal or "")
            return
        prompt, arguments = self._command_line(packet, resumable)
        if too_long(arguments):
            yield failure("context_full", f"the task is too long for the command line of {profile.name}")
            return
        clock = context.backstage.clock
        stream = profile.stream(spent=NO_USAGE if resumable is None else resumable.spent)
        environment = self._environment(packet)
        try:
            process = await launch(
                [program, *arguments],
                cwd=packet.cwd,
                env=environment,
                clock=clock,
                stdin=prompt.encode(errors="replace") if profile.prompt == "stdin" else None,
            )
        except (OSError, ValueError) as error:
            yield failure("runner_crash", f"{profile.name} could not be started: {error}")
            return
        seconds = profile.quiet_seconds if resumable is None else profile.quiet_resumed_seconds
        silence = Silence(clock, seconds, stop=lambda: process.stop(profile.grace_seconds))
        printed = 0
        try:
            async for line in process.lines(longest=profile.max_line_bytes):
                printed += len(line)
                if printed > profile.max_output_bytes:
                    silence.strike(f"it printed more than {profile.max_output_bytes} bytes")
                if silence.struck is not None:
                    continue  # it is being stopped: what it says now comes too late
                for event in stream.read(line):
                    silence.heard(event, done=stream.complete)
                    yield event
            code = await process.wait()
        finally:
            silence.end()
            # Also after an orderly end: a tool it left in the background must not outlive the run. A task, so that
            # a second cancellation interrupts the waiting and not the killing.
            await asyncio.shield(context.backstage.task(self._see_off(process, context), lasting=True))
        for event in stream.close():
            yield event
        # What a process complains of may hold what it was given in confidence.
        secrets = [*packet.env.values(), *(environment.get(name, "") for name in self._pass_env)]
        given = Redactor(value for value in secrets if len(value) >= _SECRET_LENGTH)
        yield verdict(
            profile,
            stream,
            code=code,
            complaint=process.stderr_tail,
            struck=silence.struck,
            resumed=None if resumable is None else resumable.id,
            discreet=lambda words: given.text(context.backstage.store.redactor.text(words)),
        )

    async def _see_off(self, process: Process, context: RunContext) -> None:
        context.proved(await process.stop(self.profile.grace_seconds))

    def _why_not(self, packet: SpawnPacket, resumable: Resumable | None) -> str | None:
        """What is in the way, in words; nothing is started then."""
        if not Path(packet.cwd).is_dir():
            return f"the working directory {packet.cwd} is not there any more"
        if resumable is None:
            return None
        if self.profile.resume is None:
            return f"{self.profile.name} cannot continue a conversation: spawn a new child instead"
        if os.path.realpath(resumable.cwd) != os.path.realpath(packet.cwd):
            return (
                f"the conversation was held in {resumable.cwd}, and {self.profile.name} would not find it "
                f"in {packet.cwd}: spawn a new child instead"
            )
        return None

    def _command_line(self, packet: SpawnPacket, resumable: Resumable | None) -> tuple[str, list[str]]:
        """The prompt, and the arguments."""
        profile = self.profile
        rules = system_prompt(packet, own=self._system)
        if resumable is None:
            prompt = brief(packet) if profile.takes_system else f"{rules}\n\n{brief(packet)}"
        else:
            # A run that its host's death interrupted has said its task already; a follow-up brings a new one.
            prompt = _CONTINUE if resumable.run_id == packet.run_id else packet.task
        arguments = profile.arguments(
            prompt=prompt, system=rules, session=None if resumable is None else resumable.id, model=packet.model
        )
        return prompt, [*arguments, *self._arguments]

    def _environment(self, packet: SpawnPacket) -> dict[str, str]:
        profile = self.profile
        return child_environment(
            {_OWN_SESSION: packet.session_key, **profile.env, **packet.env},
            allow=(*PASSED_ON, *profile.needs, *self._pass_env),
        )
