"""What a session is about, written down now and then without asking a model, so that others can begin from it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from understudy.persistence import StoreError
from understudy.persistence.operations import CompactHistory, SaveCheckpoint
from understudy.protocol.digest import digest
from understudy.protocol.tokens import estimate_tokens

if TYPE_CHECKING:
    from collections.abc import Sequence

    from understudy.actors.backstage import Backstage
    from understudy.persistence import Checkpoint, Ledger
    from understudy.persistence.operations import CheckpointTrigger
    from understudy.protocol import SessionKey
    from understudy.protocol.tokens import TokenEstimator

logger = logging.getLogger("understudy")

EVERY_PROMPTS = 10
EVERY_MS = 15 * 60 * 1000
"""Whichever comes first; looked at when a prompt comes."""
DIGEST_TOKENS = 500


class Rhythm:
    """When the next periodic checkpoint of a session is due."""

    __slots__ = ("_backstage", "_key", "_last", "_made", "_prompts", "_since")

    def __init__(self, backstage: Backstage, key: SessionKey) -> None:
        self._backstage = backstage
        self._key = key
        self._last: int | None = None
        self._made = False
        self._prompts = 0
        self._since: int | None = None

    def prompted(self) -> SaveCheckpoint | None:
        """A prompt comes: the checkpoint that is due before it, if one is."""
        now = self._backstage.now()
        last = self._backstage.store.sessions.checkpoint(self._key)
        if last is not None and last.id != self._last:
            # Whatever it was made for, it is the last one. A prompt that brought it about has come after it.
            self._last, self._since = last.id, last.at
            self._prompts = 1 if self._made else 0
            self._made = False
        if self._since is None:
            self._since = now
        due = None
        if self._prompts >= EVERY_PROMPTS or now - self._since >= EVERY_MS:
            due = made(self._backstage, self._key, "periodic")
            self._made = due is not None
        self._prompts += 1
        return due


def automatic(
    store: Ledger,
    key: SessionKey,
    trigger: CheckpointTrigger,
    *,
    at: int,
    estimate: TokenEstimator = estimate_tokens,
) -> SaveCheckpoint | None:
    """A checkpoint of what was said since the last one; None when nothing was, or the store cannot be read now.

    Entities and constraints are those of the last one: the store takes them over when it writes this.
    """
    try:
        last = store.sessions.checkpoint(key)
        turns = store.transcripts.turns(key, after=0 if last is None else last.last_turn_id)
    except StoreError:
        logger.warning("there is no %s checkpoint of %s", trigger, key, exc_info=True)
        return None
    if not turns:
        return None
    said = digest(
        [stored.turn for stored in turns],
        max_tokens=DIGEST_TOKENS,
        estimate=estimate,
        previous=None if last is None else last.digest,
    )
    return SaveCheckpoint(key, at, said, trigger)


def made(backstage: Backstage, key: SessionKey, trigger: CheckpointTrigger) -> SaveCheckpoint | None:
    """The same for a session of a runtime's."""
    return automatic(backstage.store, key, trigger, at=backstage.now(), estimate=backstage.estimator)


async def save(
    backstage: Backstage,
    key: SessionKey,
    text: str | None,
    entities: Sequence[str] | None,
    constraints: Sequence[str] | None,
) -> Checkpoint:
    """A checkpoint because somebody wants one; what is left out is made up, or stays what it was."""
    store = backstage.store
    if text is None:
        last, new = store.sessions.checkpoint(key), made(backstage, key, "explicit")
        text = new.digest if new is not None else last.digest if last is not None else ""
    await store.transaction(
        SaveCheckpoint(
            key,
            backstage.now(),
            text,
            "explicit",
            None if entities is None else tuple(entities),
            None if constraints is None else tuple(constraints),
        )
    )
    saved = store.sessions.checkpoint(key)
    assert saved is not None, "it was just committed"
    return saved


async def compacted(backstage: Backstage, key: SessionKey, summary: str, kept: int) -> None:
    """Record a compaction and the checkpoint before it, in one transaction, queued before this first waits."""
    try:
        before = made(backstage, key, "pre_compaction")
        record = CompactHistory(key, backstage.now(), summary, kept)
        await backstage.store.transaction(record, *(() if before is None else (before,)))
    except StoreError:
        # The turns are all stored: after a restart the history is longer than it was, and compacted again.
        logger.warning("the compaction of %s could not be recorded", key, exc_info=True)
