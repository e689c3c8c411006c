"""Results as files: exported after the fact, private, whole or not there, and swept when their time is over."""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING, Any

from understudy.persistence.operations import MarkExported, MarkSwept
from understudy.protocol import RunId, SessionKey

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from understudy.persistence._reader import Reader
    from understudy.persistence.store import Store

_PRIVATE_FOLDER, _PRIVATE_FILE = 0o700, 0o600
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC


class Results:
    """Writes ``{session}/{run}.json`` below a folder of its own, from what is committed. Blocks: not for a loop."""

    def __init__(self, store: Store, reader: Reader, root: Path, wall_ms: Callable[[], int]) -> None:
        self.root = root
        self._store = store
        self._reader = reader
        self._wall_ms = wall_ms

    def path(self, session_key: SessionKey, run_id: RunId) -> Path:
        """Where the result of a run is, or will be. The ids' own file names cannot leave the folder."""
        return self.root / session_key.file_name / f"{run_id.file_name}.json"

    def export(self, run_id: RunId) -> Path | None:
        """Write a run's result; None when it has none, or when it was swept."""
        row: Any = self._reader.row(
            """
            SELECT runs.session_key, result, full_output FROM results JOIN runs ON runs.id = results.run
            WHERE run_id = ? AND swept_at IS NULL
            """,
            (run_id,),
        )
        if row is None:
            return None
        session_key, result, full = SessionKey(row[0]), json.loads(row[1]), row[2]
        document = {**result, "full_output": result.get("output", "") if full is None else full}
        self._write(session_key, run_id, json.dumps(document, ensure_ascii=False, indent=2))
        self._store.transaction(MarkExported(run_id, self._wall_ms())).result()
        return self.path(session_key, run_id)

    def export_pending(self) -> list[RunId]:
        """Write every delivered result that has no file yet: after delivery, and again after a crash."""
        rows: list[Any] = self._reader.rows(
            """
            SELECT run_id FROM results JOIN runs ON runs.id = results.run
            WHERE exported_at IS NULL AND delivered_at IS NOT NULL AND swept_at IS NULL ORDER BY results.run
            """
        )
        return [run_id for run_id in (RunId(row[0]) for row in rows) if self.export(run_id) is not None]

    def sweep(self, *, ended_before: int) -> list[RunId]:
        """Remove what was delivered and ended before that time; gives the runs that were swept now.

        The file goes first: were the process to die in between, the next sweep finds the run again.
        """
        rows: list[Any] = self._reader.rows(
            """
            SELECT run_id, session_key FROM runs
            WHERE ended_at < ? AND delivered_at IS NOT NULL AND swept_at IS NULL ORDER BY id
            """,
            (ended_before,),
        )
        swept = []
        for run_id, session_key in ((RunId(row[0]), SessionKey(row[1])) for row in rows):
            path = self.path(session_key, run_id)
            path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # others' results are still in it, or it was never there
                path.parent.rmdir()
            (first,) = self._store.transaction(MarkSwept(run_id, self._wall_ms())).result()
            if first:
                swept.append(run_id)
        return swept

    def _write(self, session_key: SessionKey, run_id: RunId, text: str) -> None:
        """Temporary file, fsync, rename, all relative to open folders: a planted link is refused, not followed."""
        self.root.mkdir(mode=_PRIVATE_FOLDER, parents=True, exist_ok=True)
        root = os.open(self.root, _FOLDER)
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(session_key.file_name, _PRIVATE_FOLDER, dir_fd=root)
            folder = os.open(session_key.file_name, _FOLDER, dir_fd=root)
            try:
                name = f"{run_id.file_name}.json"
                temporary = f".{name}.{os.getpid()}"
                file = os.open(temporary, _NEW_FILE, _PRIVATE_FILE, dir_fd=folder)
                with os.fdopen(file, "w", encoding="utf-8") as stream:
                    stream.write(text)
                    stream.flush()
                    os.fsync(file)
                os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
                os.fsync(folder)
            finally:
                os.close(folder)
        finally:
            os.close(root)
