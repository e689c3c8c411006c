"""What docs/persistence.md says of the store is true."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from pathlib import Path

from _given import a_store, open_session

from understudy.persistence import Store

PAGE = (Path(__file__).parents[2] / "docs" / "persistence.md").read_text()


def test_the_page_names_every_table_and_view_and_no_other(tmp_path: Path) -> None:
    """A table without a word about it, or a word about no table, fails here."""
    with a_store(tmp_path) as store:
        rows = store._reader.rows(
            "SELECT type, name FROM sqlite_master WHERE type IN ('table', 'view') AND name NOT GLOB 'turns_fts_*'"
        )
    tables = {name for kind, name in rows if kind == "table"}
    assert set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)) == tables
    for name in (name for kind, name in rows if kind == "view"):
        assert f"`{name}`" in PAGE


def test_the_pages_code_runs_as_it_stands() -> None:
    """The first thing a reader copies works."""
    block = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert block is not None
    run = subprocess.run([sys.executable, "-c", block[1]], capture_output=True, text=True, timeout=60, check=False)
    assert run.stdout.splitlines() == ["fig loaded?", "Where is the config loaded?"], run.stderr


def test_the_file_is_its_owners_alone(tmp_path: Path) -> None:
    """With its log and its index, whatever the umask; so is the folder of a store without a path."""
    lenient = os.umask(0)
    try:
        with a_store(tmp_path) as store, Store.open(None, wall_ms=lambda: 0) as private:
            open_session(store)
            modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()}
            assert modes == dict.fromkeys(("store.db", "store.db-wal", "store.db-shm"), 0o600)
            assert stat.S_IMODE(private.path.parent.stat().st_mode) == 0o700
        assert not private.path.parent.exists()
    finally:
        os.umask(lenient)


def test_the_pages_methods_exist(tmp_path: Path) -> None:
    """Every ``store.…`` it mentions."""
    with a_store(tmp_path) as store:
        for path in set(re.findall(r"store\.([a-z_]+(?:\.[a-z_]+)?)\(", PAGE)):
            found: object = store
            for name in path.split("."):
                found = getattr(found, name)
            assert callable(found), path
