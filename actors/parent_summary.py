"""The parent's conversation in a few words, for a child that was to have them: asked of the parent's own model."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from understudy.actors.clock import within
from understudy.actors.models.retry import retrying
from understudy.protocol.model import ModelRequest, TextDelta, Turn, UsageReport
from understudy.protocol.prompt import summary_request
from understudy.protocol.truncate import truncate

if TYPE_CHECKING:
    from understudy.actors.live_run import LiveRun
    from understudy.actors.session import SessionActor
    from understudy.protocol.model import Model

logger = logging.getLogger("understudy")

SECONDS = 30.0
"""So long a spawn waits for the summary; then its child does without."""

_MOST_CHARACTERS = 60_000
"""So much of the conversation's end is summarised: about 15,000 tokens."""


async def summarise_parent(run: LiveRun) -> str | None:
    """The summary, or None: where there is nothing to summarise, and, with a warning, where it cannot be had."""
    session, backstage = run.session, run.backstage
    said = backstage.store.transcripts.tail(session.key, _MOST_CHARACTERS)
    if not said.strip():
        return None
    model: Model | None = getattr(backstage.runners.get(session.place.runner), "model", None)
    try:
        if model is None:
            raise LookupError(f"runner {session.place.runner!r} has no model")  # noqa: TRY301 - one way to do without
        text = await within(backstage.clock, SECONDS, _asked(session, model, said))
        if not text:
            raise ValueError("the model said nothing")  # noqa: TRY301
    except Exception as error:  # noqa: BLE001 - whatever a model does, the child is spawned
        why = f"{type(error).__name__}: {error}"
        logger.warning("run %s starts without a summary of its parent: %s", run.packet.run_id, why)
        backstage.emit("session:sub_agent_progress", run, text=f"no summary of the parent: {why}")
        return None
    return text


async def _asked(session: SessionActor, model: Model, said: str) -> str:
    backstage, tokens = session.backstage, session.backstage.config.parent_summary_max_tokens
    system, user = summary_request(said, max_tokens=tokens)
    name = None if session.owner is None else session.owner.packet.model
    request = ModelRequest((Turn("system", system), Turn("user", user)), model=name)
    words: list[str] = []
    async for event in retrying(
        lambda: model.complete(request),
        clock=backstage.clock,
        deadline=backstage.clock.monotonic() + SECONDS,
        on_attempt=lambda error: backstage.attempted(session.place.runner, session.key, error),
    ):
        if isinstance(event, TextDelta):
            words.append(event.text)
        elif isinstance(event, UsageReport):
            session.consumed(event)
    return truncate("".join(words).strip(), tokens, measure=backstage.estimator)
