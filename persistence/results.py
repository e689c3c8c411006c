"""Results as files: exported after the fact, private, whole or not there, and swept when their time is over."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from typing import TYPE_CHECKING

from understudy.persistence.errors import StoreError
from understudy.persistence.operations import DeleteRun, MarkExported, MarkSwept

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path

    from understudy.persistence.ledger import Ledger
    from understudy.protocol import RunId, SessionKey

_PRIVATE_FOLDER, _PRIVATE_FILE = 0o700, 0o600
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Results:
    """Writes ``{session}/{run}.json`` below a folder of its own, from what is committed. Blocks: not for a loop."""

    def __init__(self, store: Ledger, root: Path | None, wall_ms: Callable[[], int]) -> None:
        self._root = root
        self._store = store
        self._wall_ms = wall_ms

    @property
    def root(self) -> Path:
        """The folder the results go to."""
        if self._root is None:
            raise StoreError("results of a store in memory have no place of their own: open it with results_dir")
        return self._root

    def path(self, session_key: SessionKey, run_id: RunId) -> Path:
        """Where the result of a run is, or will be. The ids' own file names cannot leave the folder."""
        return self.root / session_key.file_name / f"{run_id.file_name}.json"

    def export(self, run_id: RunId) -> Path | None:
        """Write a run's result; None when it has none, or when it was swept."""
        run, result = self._store.runs.get(run_id), self._store.runs.result(run_id)
        if run is None or result is None or run.facts.swept_at is not None:
            return None
        session_key, document = run.session_key, result.model_dump(mode="json", exclude_none=True)
        document["full_output"] = self._store.runs.full_output(run_id)
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
        return _each(self._store.runs.unexported(), lambda run_id: self.export(run_id) is not None, "exported")

    def sweep(self, *, ended_before: int) -> list[RunId]:
        """Remove what was delivered and ended before that time; gives the runs that were swept now.

        Those that cannot be removed are raised as a group, once all others are.
        """
        return _each(self._store.runs.sweepable(ended_before=ended_before), self._sweep, "swept")

    def forget(self, run_id: RunId) -> bool:
        """Forget a finished and delivered run, its file included. Answers whether it was forgotten."""
        run = self._store.runs.get(run_id)
        (forgotten,) = self._store.transaction(DeleteRun(run_id)).result()
        if run is not None and forgotten:
            self._remove(run.session_key, run_id)
        return bool(forgotten)

    def _sweep(self, run_id: RunId) -> bool:
        run = self._store.runs.get(run_id)
        if run is None:  # forgotten meanwhile
            return False
        # Before the mark: were the process to die in between, the next sweep finds the run again.
        self._remove(run.session_key, run_id)
        (first,) = self._store.transaction(MarkSwept(run_id, self._wall_ms())).result()
        # After it: an export may have come between the two; after the mark none stands.
        self._remove(run.session_key, run_id)
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
        if self._root is None:
            return
        name = f"{run_id.file_name}.json"
        with contextlib.suppress(FileNotFoundError), _opened(self._root) as root:
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


def _each(runs: Collection[RunId], work: Callable[[RunId], bool], done: str) -> list[RunId]:
    """The runs for which ``work`` was done; one that cannot be does not hold up the others."""
    worked: list[RunId] = []
    failed: list[Exception] = []
    for run_id in runs:
        try:
            if work(run_id):
                worked.append(run_id)
        except (OSError, ValueError) as error:
            failed.append(error)
    if failed:
        raise ExceptionGroup(f"{len(failed)} of {len(runs)} results could not be {done}; try again", failed)
    return worked
