"""A session that thinks: its own turns, by the same loop as its children's."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from understudy.actors import checkpoints
from understudy.actors.searching import Searcher
from understudy.actors.tools.context import ToolContext
from understudy.actors.turns.compaction import Compactor, Window
from understudy.actors.turns.exchange import Exchange
from understudy.actors.turns.history import closed
from understudy.actors.turns.loop import Means, TurnLoop
from understudy.persistence.operations import AppendTurns, SaveContext
from understudy.protocol.model import Turn, UsageReport
from understudy.protocol.runner import Said, Touched
from understudy.protocol.usage import NO_USAGE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from understudy.actors.announcing import Results
    from understudy.actors.runners.model import ModelRunner
    from understudy.actors.session import SessionActor
    from understudy.persistence import Commit
    from understudy.protocol import Failure, Usage
    from understudy.protocol.runner import RunnerEvent


@dataclass(frozen=True, slots=True)
class Reply:
    """What a session's own model answered; with a failure it is as much of an answer as there is."""

    output: str
    usage: Usage = NO_USAGE
    failure: Failure | None = None


class Mind:
    """The model behind a session, one conversation at a time."""

    def __init__(self, session: SessionActor, runner: ModelRunner) -> None:
        self._session = session
        self._runner = runner
        self._turn = asyncio.Lock()
        self._history: list[Turn] | None = None
        self._unconfirmed: list[Commit] = []
        self._usage = NO_USAGE
        self._exchange = session.own_exchange = Exchange()
        self._window = Window(session.backstage.config, session.backstage.estimator)
        self._rhythm = checkpoints.Rhythm(session.backstage, session.key)

    async def prompt(self, text: str) -> Reply:
        """The answer to ``text``, tools and spawns included. Prompts to one session wait for each other."""
        async with self._turn:
            history = await self._recall()
            due = self._rhythm.prompted()
            if due is not None:
                self._unconfirmed.append(self._session.backstage.store.transaction(due))
            asked = Turn("user", text)
            history.append(asked)
            self.emit(Said(asked))
            return await self._think(history)

    async def wake(self, _results: Results) -> None:
        """Think about what has come in; it is in the history already."""
        async with self._turn:
            await self._think(await self._recall())

    async def compact(self) -> int:
        """Sum up the older turns now, or at the next boundary of a prompt that is under way; gives how many."""
        self._window.wanted = True
        async with self._turn:
            if not self._window.wanted:
                return self._window.removed
            return await Compactor(self._means(), self).at_once(await self._recall())

    def _means(self) -> Means:
        session, runner = self._session, self._runner
        backstage, place = session.backstage, session.place
        return Means(
            model=runner.model,
            toolbox=runner.delegating,
            tools=ToolContext(
                place.cwd,
                place.workspace_dir,
                backstage.clock,
                backstage.kernel.pool.run,
                lambda: session,
                runner.delegating.authority,
                search=Searcher(backstage.store, place.agent_id, place.visibility),
            ),
            clock=backstage.clock,
            max_steps=backstage.config.max_steps,
            window=self._window,
            system=runner.system,
            approve=runner.approve,
            on_attempt=lambda error: backstage.attempted(place.runner, session.key, error),
        )

    async def _think(self, history: list[Turn]) -> Reply:
        session = self._session
        self._usage = NO_USAGE
        try:
            final = await TurnLoop(self._means(), self).run(history)
        except BaseException:
            # Given up in the middle, perhaps of an exchange: what is stored is read again, and closed, by the next.
            self._history = None
            raise
        finally:
            self._window.asked = None
            self._exchange.end()
            if session.owed:
                session.backstage.task(session.deliver_owed())
        if final.output.strip():
            answer = Turn("assistant", final.output)
            history.append(answer)
            self.emit(Said(answer))
        await self.flush()
        return Reply(final.output, self._usage, final.failure)

    async def _recall(self) -> list[Turn]:
        """The session's history, read once; a call that a crash cut off is closed for good."""
        if self._history is None:
            # First what is on its way to the store: whatever is read here does not arrive a second time.
            await self.flush()
            await self._exchange.settled()
            self._history, made_up = closed(self._session.backstage.history_of(self._session.key))
            self._session.arrived.clear()
            for turn in made_up:
                self.emit(Said(turn))
        self._history += self._take_arrived()
        return self._history

    def _take_arrived(self) -> list[Turn]:
        arrived = list(self._session.arrived)
        self._session.arrived.clear()
        return arrived

    # -- what the turn loop asks of whom it speaks for --------------------------------------------------

    def emit(self, event: RunnerEvent) -> None:
        """Store what was said, count what was used, remember what was touched."""
        session = self._session
        backstage = session.backstage
        if isinstance(event, Said):
            if event.turn.tool_calls:
                self._exchange.begin()
            self._unconfirmed.append(
                backstage.store.transaction(AppendTurns(session.key, backstage.now(), (event.turn,)))
            )
        elif isinstance(event, UsageReport):
            self._usage = self._usage + event.usage
            session.tree.add(event.usage)
        elif isinstance(event, Touched) and event.ok:
            session.touch(event.path)
            backstage.store.transaction(SaveContext(session.key, backstage.now(), session.context))

    def answer(self, turns: Sequence[Turn]) -> None:
        """The tools' results, all of one exchange; results of children among them are acknowledged with it."""
        session, backstage = self._session, self._session.backstage
        said = AppendTurns(session.key, backstage.now(), tuple(turns))
        debts = session.settle_debts()
        commit = backstage.store.transaction(said, *debts, point="merge" if debts else None)
        self._unconfirmed.append(commit)
        if debts:
            backstage.task(session.see_merged(commit, [debt.run_id for debt in debts]))

    async def flush(self) -> None:
        """Wait until every turn so far is committed; a store that cannot take one fails the prompt."""
        waiting, self._unconfirmed = self._unconfirmed, []
        for commit in waiting:
            await commit

    async def boundary(self) -> list[Turn]:
        """Let in what has settled meanwhile."""
        self._exchange.end()
        await self._exchange.settled()
        return self._take_arrived()

    def aside(self) -> str:
        """The working context, sub-agents, results on their way, the objective."""
        return self._session.aside()

    def objective(self) -> str | None:
        """What the session is for."""
        return self._session.objective

    def files(self) -> Sequence[str]:
        """The session's recent files."""
        return self._session.context.recent_files

    async def compacted(self, summary: str, kept: int) -> None:
        """Record it, and the checkpoint before it."""
        await checkpoints.compacted(self._session.backstage, self._session.key, summary, kept)
