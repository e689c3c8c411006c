"""Looking for what was said, as somebody: the agent, and with it what can be seen, is fixed before there is a query."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from understudy.persistence import SearchHit
    from understudy.persistence.operations import Visibility
    from understudy.persistence.redaction import Redactor
    from understudy.persistence.search import Search

USUAL_HITS = 10
MOST_HITS = 20


class Searched(Protocol):
    """A store, or a view of one."""

    redactor: Redactor
    search: Search


@dataclass(frozen=True, slots=True)
class Searcher:
    """Who searches. ``session_key`` is where, unless a query says otherwise; None is wherever the agent may look."""

    store: Searched
    agent_id: str
    visibility: Visibility
    session_key: str | None = None

    def __call__(self, query: str, *, session_key: str | None = None, limit: int = USUAL_HITS) -> list[SearchHit]:
        """The best turns first. A session that does not exist and one that may not be seen have none, alike."""
        found = self.store.search(
            query,
            agent_id=self.agent_id,
            visibility=self.visibility,
            session_key=session_key or self.session_key,
            limit=limit,
        )
        # Once more: what is known to be a secret now may not have been when it was written.
        return [replace(hit, excerpt=self.store.redactor.text(hit.excerpt)) for hit in found]
