"""How the demo shows itself: a live tree in a terminal, lines of text in a pipe."""

from __future__ import annotations

import sys
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.tree import Tree

    from understudy.actors import Runtime
    from understudy.protocol import Event


class Stage(Protocol):
    """Where the demo is shown."""

    def say(self, text: str) -> None:
        """A line of the story."""

    def show(self, text: str) -> None:
        """Some text as it is."""

    def watch(self, runtime: Runtime) -> None:
        """Show the runtime's events from now on."""

    def close(self) -> None:
        """The show is over."""


@dataclass
class Shown:
    """A sub-agent as it is shown."""

    label: str
    depth: int
    parent: str | None
    state: str = "running"
    note: str = ""
    began: float = field(default_factory=time.monotonic)


_ENDS = {
    "completed": ("✔", "green"),
    "killed": ("✖", "red"),
    "watchdog_timeout": ("◔", "yellow"),
    "ghost_sweep": ("☠", "magenta"),
    "failed": ("✖", "red"),
}


def describe(event: Event) -> tuple[str, str] | None:
    """What an event means for its sub-agent: its state, and a note."""
    name = event.name.removeprefix("session:sub_agent_")
    data = event.data
    if name == "started":
        return "running", "started"
    if name == "progress":
        return ("running", str(data["text"])) if "text" in data else None
    if name == "lifecycle_ended":
        seconds = float(data["runtime_ms"] or 0) / 1000
        return str(data["end_reason"]), f"{data['end_reason']} after {seconds:.1f} s, {data['tokens']} tokens"
    return None


class Following:
    """Follows a runtime's events on a thread."""

    def __init__(self) -> None:
        self.shown: dict[str, Shown] = {}
        self._threads: list[threading.Thread] = []

    def watch(self, runtime: Runtime) -> None:
        """Follow its events from now on."""
        events = runtime.events()

        def follow() -> None:
            for event in events:
                self._take(runtime, event)

        thread = threading.Thread(target=follow, name="demo-events", daemon=True)
        thread.start()
        self._threads.append(thread)

    def close(self) -> None:
        """Hear the last of them."""
        for thread in self._threads:
            thread.join(timeout=5)

    def _take(self, runtime: Runtime, event: Event) -> None:
        if event.run_id is None:
            return
        if event.run_id not in self.shown:
            record = runtime.store.runs.get(event.run_id)
            if record is None:
                return
            self.shown[event.run_id] = Shown(record.label, record.depth, record.parent_run_id)
        shown = self.shown[event.run_id]
        change = describe(event)
        if change is not None:
            shown.state, shown.note = change
            self.changed(shown, shown.note)
        elif event.name == "session:sub_agent_delivered":
            shown.note += "; merged"
            self.changed(shown, "merged into its parent")

    def changed(self, shown: Shown, what: str) -> None:
        """Something happened to a sub-agent."""
        raise NotImplementedError


class PlainStage(Following):
    """One line an event, for pipes and logs."""

    def say(self, text: str) -> None:
        """A line of the story."""
        print(f"\n{text}", flush=True)

    def show(self, text: str) -> None:
        """Some text as it is."""
        print(text, flush=True)

    def changed(self, shown: Shown, what: str) -> None:
        """A line for it."""
        print(f"{'  ' * shown.depth}{shown.label:<12} {what}", flush=True)


class LiveStage(Following):
    """A tree that changes in place."""

    def __init__(self) -> None:
        from rich.console import Console  # noqa: PLC0415 - rich comes with the extra `cli`
        from rich.live import Live  # noqa: PLC0415

        super().__init__()
        self._console = Console()
        self._live = Live(get_renderable=lambda: tree(self.shown), console=self._console, refresh_per_second=10)
        self._live.start()

    def say(self, text: str) -> None:
        """A line of the story, above the tree."""
        self._console.print(f"\n[bold]{text}[/bold]", highlight=False)

    def show(self, text: str) -> None:
        """Some text as it is, above the tree."""
        self._console.print(text, markup=False, highlight=False)

    def changed(self, shown: Shown, what: str) -> None:
        """Nothing to do: the tree is drawn ten times a second."""

    def close(self) -> None:
        """Leave the last picture standing."""
        super().close()
        self._live.stop()


def tree(subagents: Mapping[str, Shown]) -> Tree:
    """Who is below whom, and how each of them is."""
    from rich.text import Text  # noqa: PLC0415
    from rich.tree import Tree as _Tree  # noqa: PLC0415

    root = _Tree("agent:atlas:main")
    branches: dict[str | None, Tree] = {None: root}
    for run_id, shown in tuple(subagents.items()):
        sign, colour = _ENDS.get(shown.state, ("●", "cyan"))
        line = Text.assemble((f"{sign} ", colour), (f"{shown.label:<12}", "bold"), (shown.note, colour))
        branches[run_id] = branches.get(shown.parent, root).add(line)
    return root


def stage() -> Stage:
    """A tree where there is a terminal and rich is installed, else plain lines."""
    if sys.stdout.isatty():
        try:
            return LiveStage()
        except ImportError:
            pass
    return PlainStage()
