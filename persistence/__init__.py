"""What survives: one durable store for sessions, runs, turns and results."""

from understudy.persistence import operations
from understudy.persistence._commit import Commit
from understudy.persistence._writer import BusySignal
from understudy.persistence.errors import (
    CorruptStoreError,
    DuplicateRunError,
    ForeignStoreError,
    IngestConflictError,
    StoreClosedError,
    StoreError,
    StoreUnavailableError,
)
from understudy.persistence.ingest import Ingested
from understudy.persistence.ledger import Ledger
from understudy.persistence.memory import MemoryStore
from understudy.persistence.reading import StoreView
from understudy.persistence.records import (
    Checkpoint,
    Compaction,
    DeadLetterRecord,
    HostRecord,
    LateEnding,
    OutboxEntry,
    Page,
    RunRecord,
    SessionRecord,
    StoredTurn,
)
from understudy.persistence.redaction import Redactor
from understudy.persistence.search import SearchHit
from understudy.persistence.store import Store

__all__ = [
    "BusySignal",
    "Checkpoint",
    "Commit",
    "Compaction",
    "CorruptStoreError",
    "DeadLetterRecord",
    "DuplicateRunError",
    "ForeignStoreError",
    "HostRecord",
    "IngestConflictError",
    "Ingested",
    "LateEnding",
    "Ledger",
    "MemoryStore",
    "OutboxEntry",
    "Page",
    "Redactor",
    "RunRecord",
    "SearchHit",
    "SessionRecord",
    "Store",
    "StoreClosedError",
    "StoreError",
    "StoreUnavailableError",
    "StoreView",
    "StoredTurn",
    "operations",
]
