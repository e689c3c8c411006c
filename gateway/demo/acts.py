"""The two acts, each in a host process of its own: the first one is killed, the second one picks up."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import TYPE_CHECKING

from understudy.actors import FunctionRunner, Runtime
from understudy.gateway.demo import workers
from understudy.protocol import RuntimeConfig, Spawn

if TYPE_CHECKING:
    from pathlib import Path

    from understudy.actors import Session
    from understudy.gateway.demo.stage import Stage

SESSION = "agent:atlas:main"
RUNNERS = {name: FunctionRunner(getattr(workers, name)) for name in ("read_files", "delegate", "hang", "write_report")}


def first_act(folder: Path, shown: Stage) -> None:
    """Fan out, see one hang and one be killed, take the results in; then die in the middle of the work."""
    with Runtime(folder / "agents.db", runners=RUNNERS, config=RuntimeConfig()) as runtime:
        shown.watch(runtime)
        session = runtime.session(SESSION, workspace=folder / "project", runner="read_files")
        shown.say("A parent fans out to five sub-agents over real files.")
        code = session.spawn(Spawn(task="Read the code", label="code", artifact_refs=("loader.py", "client.py")))
        text = session.spawn(Spawn(task="Read the text", label="text", artifact_refs=("README.md",)))
        nested = session.spawn(
            Spawn(task="Find the settings", label="settings", runner="delegate", artifact_refs=("config.toml",))
        )
        hung = session.spawn(Spawn(task="Ask upstream", label="upstream", runner="hang", timeout_ms=2_000))
        stray = session.spawn(Spawn(task="Look around", label="stray", runner="hang"))
        time.sleep(1.0)
        report = session.kill(stray.run_id, "no longer needed")
        for handle in (code, text, nested, hung):
            handle.result(timeout=60)
        shown.say(f"One was killed ({len(report.killed)}), one hung and was stopped by the watchdog.")
        tell_context(shown, session)
        shown.say("Two more begin, and now the host process is killed (kill -9) under them …")
        session.spawn(Spawn(task="Write it up", label="report", runner="write_report", restart="resume"))
        session.spawn(Spawn(task="Ask again", label="lost", runner="hang"))
        time.sleep(0.9)
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGKILL)


def second_act(folder: Path, shown: Stage) -> int:
    """Start again on the same file and see that nothing is missing."""
    shown.say("… and started again on the same file.")
    with Runtime(folder / "agents.db", runners=RUNNERS, config=RuntimeConfig()) as runtime:
        shown.watch(runtime)
        session = runtime.session(SESSION)
        runs = runtime.runs().items
        results = [runtime.run(run.run_id).result(timeout=60) for run in reversed(runs)]
        tell_context(shown, session)
        shown.say("Every run that was ever accepted has its one result:")
        for result in results:
            why = f"  ({result.failure.message})" if result.failure else ""
            shown.show(f"  {result.label:<12} {result.end_reason}{why}")
        runs = runtime.runs().items
        ended = sum(run.facts.ended_at is not None for run in runs)
        merged = sum(run.facts.delivered_at is not None for run in runs)
        notes = sum(turn.turn.text.startswith("[Subagent Result") for turn in session.transcript())
        shown.say(
            f"{len(runs)} accepted, {ended} ended, {merged} merged; {notes} of them in this parent's own history."
        )
        whole = len(runs) == ended == merged and not runtime.store.problems()
        shown.say("Nothing is missing." if whole else "SOMETHING IS MISSING.")
    shown.close()
    return 0 if whole else 1


def tell_context(shown: Stage, session: Session) -> None:
    """The parent's next context, as its model would get it."""
    time.sleep(0.1)  # the last events first: they are shown by another thread
    shown.say("What the parent's next model call gets besides its history:")
    shown.show(session.next_context())
