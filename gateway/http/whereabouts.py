"""Where a database's server is: a small file beside the database, while the server runs."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from understudy.actors.host import process_started

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """A running server; its token is in ``token_file``."""

    url: str
    pid: int
    process_started: int
    token_file: str


def running_server(database: Path) -> Whereabouts | None:
    """The server of a database, if one runs; what a killed one left behind is not believed."""
    try:
        found = Whereabouts(**json.loads(_file(database).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
    return found if _lives(found) else None


@contextlib.contextmanager
def announced(database: Path, here: Whereabouts) -> Iterator[None]:
    """Others can find this server meanwhile."""
    path = _file(database)
    draft = path.with_name(f"{path.name}.{here.pid}")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        json.dump(asdict(here), file)
    draft.replace(path)  # in one step: who looks finds all of it or nothing
    try:
        yield
    finally:
        if running_server(database) == here:
            path.unlink(missing_ok=True)


def _lives(found: Whereabouts) -> bool:
    if found.process_started:
        return process_started(found.pid) == found.process_started
    try:
        os.kill(found.pid, 0)  # no /proc: a process of that number is all that can be known
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _file(database: Path) -> Path:
    return database.with_name(f"{database.name}.server")
