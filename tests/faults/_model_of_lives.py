"""What ought to happen, in as few words as possible: runs, slots, queues, deadlines, and who goes down with whom."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

LIMIT, QUEUE = 2, 2
QUEUE_SECONDS = 30.11
"""Never a sum of the others: no two limits of different kinds strike at the same moment."""

End = tuple[str, str | None]


@dataclass(eq=False)
class Run:
    """One run as it ought to be."""

    run_id: str
    label: str
    parent: Run | None
    keep: bool
    resumes: bool
    seconds: float
    accepted: float
    state: Literal["queued", "running", "ended"] = "queued"
    deadline: float = 0.0
    generation: int = 1
    end: End | None = None
    tokens: int = 0
    home: Run | None = None
    """In whose session it stands: its parent's, and after a crash that of the nearest one above that lives."""

    @property
    def depth(self) -> int:
        return 1 if self.parent is None else self.parent.depth + 1


@dataclass
class Tree:
    """One session's tree."""

    now: float = 0.0
    runs: list[Run] = field(default_factory=list)

    # -- who is where -----------------------------------------------------------------------------------

    def alive(self, state: str | None = None) -> list[Run]:
        """Runs without an end, in the order in which they were accepted."""
        return [run for run in self.runs if run.state != "ended" and state in {None, run.state}]

    def beside(self, home: Run | None, state: str) -> list[Run]:
        """The runs of one session."""
        return [run for run in self.alive(state) if run.home is home]

    def room(self, home: Run | None) -> Literal["start", "queue", "full"]:
        """What becomes of one more."""
        waiting = len(self.beside(home, "queued"))
        if len(self.beside(home, "running")) < LIMIT and not waiting:
            return "start"
        return "queue" if waiting < QUEUE else "full"

    def below(self, above: Run) -> list[Run]:
        """Everything alive below a run."""
        return [run for run in self.alive() if any(each is above for each in self.lineage(run))]

    @staticmethod
    def lineage(run: Run) -> list[Run]:
        found, above = [], run.parent
        while above is not None:
            found.append(above)
            above = above.parent
        return found

    # -- what happens to them ---------------------------------------------------------------------------

    def accept(self, run: Run) -> None:
        """One more, where there is room for it."""
        if self.room(run.home) == "start":
            self._start(run)
        self.runs.append(run)

    def _start(self, run: Run) -> None:
        run.state, run.deadline = "running", self.now + run.seconds

    def finish(self, run: Run, end: End) -> None:
        """It ends; unless it is completed, everything below it has ended before."""
        if end != ("completed", None):
            for other in self.below(run):
                self._end(other, ("killed", "parent_stopped"))
        self._end(run, end)
        self._let_in()

    def kill(self, run: Run) -> None:
        """With all that is below it."""
        self.finish(run, ("killed", "killed"))

    def stop_all(self) -> None:
        """The session is closed."""
        for run in self.alive():
            self._end(run, ("killed", "parent_stopped"))

    def stop_host(self) -> None:
        """An orderly stop: what may resume waits for the next start, and below it what may resume too."""
        spared: list[Run] = []
        alive = self.alive()  # in this order: nobody before the one above
        for run in alive:
            above = next((each for each in self.lineage(run) if each in alive), None)
            if run.resumes and (above is None or above in spared):
                spared.append(run)
            else:
                self._end(run, ("killed", "host_stopped" if above is None or above in spared else "parent_stopped"))
        self._resume()

    def crash(self) -> None:
        """The host is gone: what may resume does, what waits waits on, and all else is lost with what is below it."""
        lost: list[Run] = []
        for run in self.alive():
            if any(above in lost for above in self.lineage(run)) or (run.state == "running" and not run.resumes):
                lost.append(run)
                self._end(run, ("ghost_sweep", "host_lost"))
        self._resume()

    def _resume(self) -> None:
        for run in self.alive():
            run.generation += 1
            while run.home is not None and run.home.state == "ended":
                run.home = run.home.parent
        self._let_in()

    def pass_by(self, seconds: float) -> None:
        """Time goes on; limits strike in their order."""
        until = self.now + seconds
        while (strike := min(self._strikes(), key=lambda each: each[0], default=None)) is not None:
            due, run = strike
            if due > until + 1e-9:
                break
            self.now = max(self.now, due)
            late: End = ("failed", "queue_timeout") if run.state == "queued" else ("watchdog_timeout", "deadline")
            self.finish(run, late)
        self.now = until

    def _strikes(self) -> list[tuple[float, Run]]:
        return [(run.accepted + QUEUE_SECONDS if run.state == "queued" else run.deadline, run) for run in self.alive()]

    def _end(self, run: Run, end: End) -> None:
        run.state, run.end = "ended", end

    def _let_in(self) -> None:
        for run in self.alive("queued"):
            if len(self.beside(run.home, "running")) < LIMIT:
                self._start(run)
