"""Results as files: exported after the fact, private, whole or not there, and swept when their time is over."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from typing import TYPE_CHECKING, Any

from understudy.persistence.operations import DeleteRun, MarkExported, MarkSwept
from understudy.protocol import RunId, SessionKey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from understudy.persistence._reader import Reader
    from understudy.persistence.store import Store

_PRIVATE_FOLDER, _PRIVATE_FILE = 0o700, 0o600
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


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
        (stands,) = self._store.transaction(MarkExported(run_id, self._wall_ms())).result()
        if not stands:  # swept or forgotten meanwhile: nobody would remove the file any more
            self._remove(session_key, run_id)
            return None
        return self.path(session_key, run_id)

    def export_pending(self) -> list[RunId]:
        """Write every delivered result that has no file yet: after delivery, and again after a crash.

        Those that cannot be written are raised as a group, once all others are written.
        """
        rows: list[Any] = self._reader.rows(
            """
            SELECT run_id FROM results JOIN runs ON runs.id = results.run
            WHERE exported_at IS NULL AND delivered_at IS NOT NULL AND swept_at IS NULL ORDER BY results.run
            """
        )
        return _each(rows, lambda row: self.export(RunId(row[0])) is not None, "exported")

    def sweep(self, *, ended_before: int) -> list[RunId]:
        """Remove what was delivered and ended before that time; gives the runs that were swept now.

        Those that cannot be removed are raised as a group, once all others are.
        """
        rows: list[Any] = self._reader.rows(
            """
            SELECT run_id, session_key FROM runs
            WHERE ended_at < ? AND delivered_at IS NOT NULL AND swept_at IS NULL ORDER BY id
            """,
            (ended_before,),
        )
        return _each(rows, lambda row: self._sweep(SessionKey(row[1]), RunId(row[0])), "swept")

    def forget(self, run_id: RunId) -> bool:
        """Forget a finished and delivered run, its file included. Answers whether it was forgotten."""
        row: Any = self._reader.row("SELECT session_key FROM runs WHERE run_id = ?", (run_id,))
        (forgotten,) = self._store.transaction(DeleteRun(run_id)).result()
        if row is not None and forgotten:
            self._remove(SessionKey(row[0]), run_id)
        return bool(forgotten)

    def _sweep(self, session_key: SessionKey, run_id: RunId) -> bool:
        # Before the mark: were the process to die in between, the next sweep finds the run again.
        self._remove(session_key, run_id)
        (first,) = self._store.transaction(MarkSwept(run_id, self._wall_ms())).result()
        # After it: an export may have come between the two; after the mark none stands.
        self._remove(session_key, run_id)
        return bool(first)

    def _write(self, session_key: SessionKey, run_id: RunId, text: str) -> None:
        """Temporary file, fsync, rename."""
        self.root.mkdir(mode=_PRIVATE_FOLDER, parents=True, exist_ok=True)
        with _opened(self.root) as root:
            with contextlib.suppress(FileExistsError):
                os.mkdir(session_key.file_name, _PRIVATE_FOLDER, dir_fd=root)
            with _opened(session_key.file_name, root) as folder:
                os.fchmod(folder, _PRIVATE_FOLDER)
                name = f"{run_id.file_name}.json"
                temporary = f".{name}.{secrets.token_hex(8)}"
                file = os.open(temporary, _NEW_FILE, _PRIVATE_FILE, dir_fd=folder)
                try:
                    with os.fdopen(file, "w", encoding="utf-8") as stream:
                        stream.write(text)
                        stream.flush()
                        os.fsync(file)
                    os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
                except BaseException:
                    os.unlink(temporary, dir_fd=folder)
                    raise
                os.fsync(folder)

    def _remove(self, session_key: SessionKey, run_id: RunId) -> None:
        """The file, what a crash left of it, and its folder if that is empty then; fine if there is nothing."""
        name = f"{run_id.file_name}.json"
        with contextlib.suppress(FileNotFoundError), _opened(self.root) as root:
            with _opened(session_key.file_name, root) as folder:
                with os.scandir(folder) as entries:
                    names = [entry.name for entry in entries]
                for found in names:
                    if found == name or found.startswith(f".{name}."):
                        with contextlib.suppress(FileNotFoundError):  # another sweep was faster
                            os.unlink(found, dir_fd=folder)
            with contextlib.suppress(OSError):  # others' results are still in it
                os.rmdir(session_key.file_name, dir_fd=root)


@contextlib.contextmanager
def _opened(folder: Path | str, parent: int | None = None) -> Iterator[int]:
    """A folder to work in by descriptor: a planted link is refused, not followed, now and later."""
    descriptor = os.open(folder, _FOLDER, dir_fd=parent)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _each(rows: Sequence[Any], work: Callable[[Any], bool], done: str) -> list[RunId]:
    """The runs for which ``work`` was done; one that cannot be does not hold up the others."""
    worked, failed = list[RunId](), list[Exception]()
    for row in rows:
        try:
            if work(row):
                worked.append(RunId(row[0]))
        except (OSError, ValueError) as error:
            failed.append(error)
    if failed:
        raise ExceptionGroup(f"{len(failed)} of {len(rows)} results could not be {done}; try again", failed)
    return worked
