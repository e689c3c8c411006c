"""The store of a process that wants nothing to survive it: the same operations and questions over plain dicts."""

from understudy.persistence.memory.store import MemoryStore

__all__ = ["MemoryStore"]
