"""Opening a file: brought forward from every earlier version, and never touched where it is not ours or not well."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from understudy.persistence import CorruptStoreError, ForeignStoreError, Store, StoreUnavailableError
from understudy.persistence.migrations import MIGRATIONS

if TYPE_CHECKING:
    from conftest import Given
    from sqlite_utils import Database

    from understudy.persistence.migrations import Migration

# One file of each released version, written by that version's own code: `python tests/persistence/stored/write.py`.
STORED = sorted((Path(__file__).parent / "stored").glob("v*.db"))


def query(path: Path, sql: str) -> list[tuple[object, ...]]:
    """What another program sees in the file."""
    with closing(sqlite3.connect(path)) as other:
        return other.execute(sql).fetchall()


def folder(path: Path) -> dict[str, bytes]:
    """Everything beside ``path``, byte for byte."""
    return {file.name: file.read_bytes() for file in sorted(path.parent.iterdir())}


def opened(path: Path, *more: Migration) -> Store:
    return Store.open(path, wall_ms=lambda: 0, busy_timeout_ms=1, migrations=(*MIGRATIONS, *more))


class TestForward:
    def test_there_is_a_stored_file_of_every_version(self) -> None:
        """Whoever adds a migration adds the file that the version before it wrote."""
        assert [file.stem for file in STORED] == [f"v{number}" for number in range(1, len(MIGRATIONS) + 1)]

    @pytest.mark.parametrize("stored", STORED, ids=lambda file: file.stem)
    def test_a_stored_file_opens_with_everything_in_it(self, stored: Path, path: Path, given: Given) -> None:
        """Run 1 was merged, run 2 waits for delivery, run 3 is running: all of it is read, and goes on."""
        shutil.copyfile(stored, path)
        with opened(path) as store:
            assert store.problems() == []
            runs = [store.runs.get(given.run_id(number)) for number in (1, 2, 3)]
            assert [run and run.facts.status for run in runs] == ["completed", "failed", "running"]
            assert store.runs.result(given.run_id(1)) == given.result(1)
            assert [entry.run_id for entry in store.outbox.undelivered()] == [given.run_id(2)]
            assert [row.turn.text for row in store.transcripts.turns(given.parent)] == [given.merge(1).turns[0].text]
            assert store.sessions.working_context(given.parent) == given.merge(1).context
            assert [hit.session_key for hit in store.search("result", agent_id="default")] == [given.parent]
            session, compaction = store.sessions.get(given.parent), store.transcripts.compaction(given.parent)
            first = stored.stem == "v1"  # which knew neither
            assert (session and session.objective) == (None if first else "Ship it")
            assert (compaction and compaction.summary) == (None if first else "what was said")
            assert store.transaction(given.merge(2), given.finish(3)).result(10) == (True, True)
            assert store.problems() == []
        assert query(path, "PRAGMA user_version") == [(len(MIGRATIONS),)]

    @pytest.mark.parametrize("stored", STORED, ids=lambda file: file.stem)
    def test_a_file_brought_forward_is_like_a_new_one(self, stored: Path, path: Path, tmp_path: Path) -> None:
        """Table for table and index for index; so no released step can be edited afterwards either."""
        shutil.copyfile(stored, path)
        schema = "SELECT type, name, sql FROM sqlite_master ORDER BY name"
        opened(path).close()
        opened(tmp_path / "new.db").close()
        assert query(path, schema) == query(tmp_path / "new.db", schema)

    def test_an_older_file_is_brought_forward(self, path: Path, given: Given) -> None:
        """A later version's step sees the rows of the one before it; the file then has the later version."""
        with opened(path) as store:
            store.transaction(given.opened(), *given.accept(1)).result(10)

        def add_priority(db: Database) -> None:
            db.table("runs").add_column("priority", int, not_null_default=3)

        def count(db: Database) -> None:
            db.create_view("priorities", "SELECT priority, count(*) AS runs FROM runs GROUP BY priority")

        with opened(path, add_priority, count) as store:
            assert store.problems() == []
            assert store.runs.get(given.run_id(1)) is not None
        assert query(path, "SELECT * FROM priorities") == [(3, 1)]
        assert query(path, "PRAGMA user_version") == [(len(MIGRATIONS) + 2,)]
        with opened(path, add_priority, count):
            pass  # and no step is taken twice

    def test_a_step_that_fails_leaves_the_old_file(self, path: Path, given: Given) -> None:
        """Also what the steps before it did is undone, and today's code still opens the file."""
        with opened(path) as store:
            store.transaction(given.opened(), *given.accept(1)).result(10)
        before = query(path, "SELECT type, name, sql FROM sqlite_master ORDER BY name")

        def add_priority(db: Database) -> None:
            db.table("runs").add_column("priority", int, not_null_default=3)
            db.table("notes").insert_all([{"id": 1, "text": "a"}, {"id": 2, "text": "b"}], pk="id")
            db.table("notes").create_index(["text"])

        def break_down(db: Database) -> None:
            db.table("runs").delete_where()
            db.create_view("notes_view", "SELECT * FROM notes")
            raise OSError("the power went")

        with pytest.raises(OSError, match="the power went"):
            opened(path, add_priority, break_down)
        assert query(path, "SELECT type, name, sql FROM sqlite_master ORDER BY name") == before
        assert query(path, "PRAGMA user_version") == [(len(MIGRATIONS),)]
        with opened(path) as store:
            assert store.runs.get(given.run_id(1)) is not None
            assert store.problems() == []

    def test_hosts_that_open_a_new_file_together_all_get_it(self, path: Path, given: Given) -> None:
        """One of them makes it, the others find it made."""
        start, failures = threading.Barrier(8), []

        def host(number: int) -> None:
            start.wait(10)
            try:
                with Store.open(path, wall_ms=lambda: 0) as store:
                    store.transaction(*given.accept(number)).result(10)
            except Exception as error:  # noqa: BLE001 - shown by the assertion
                failures.append(error)

        hosts = [threading.Thread(target=host, args=(number,)) for number in range(1, 9)]
        for one in hosts:
            one.start()
        for one in hosts:
            one.join()
        assert failures == []
        with opened(path) as store:
            assert len(store.runs.unfinished()) == 8
            assert store.problems() == []

    def test_a_new_file_is_its_owners_and_comes_alone(self, path: Path) -> None:
        """Nothing of its making is left beside it."""
        opened(path).close()
        assert list(folder(path)) == ["store.db"]
        assert path.stat().st_mode & 0o777 == 0o600

    @pytest.mark.parametrize("code", [errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK])
    def test_a_volume_without_hard_links_will_do(self, path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
        """A memory stick or a network share, say, whatever it calls that: the file is made in place."""

        def refuse(*_: object) -> None:
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(os, "link", refuse)
        with opened(path) as store:
            assert store.problems() == []
            assert path.stat().st_mode & 0o777 == 0o600
        assert list(folder(path)) == ["store.db"]

    def test_a_folder_that_is_not_there_is_named(self, path: Path) -> None:
        """And an empty file that is there is as good as none."""
        with pytest.raises(FileNotFoundError, match=f"{path.parent}/not is no folder: make it"):
            opened(path.parent / "not" / "store.db")
        path.touch()
        opened(path).close()


class TestRefused:
    def test_a_newer_file_is_refused_and_left_alone(self, path: Path) -> None:
        """The sentence says which version it is, which are known, and what to do."""
        opened(path, lambda db: db.table("later").create({"id": int}).analyze()).close()
        before = folder(path)
        with pytest.raises(ForeignStoreError, match=r"has version 4 and .* versions up to 3: upgrade Understudy"):
            opened(path)
        assert folder(path) == before

    @pytest.mark.parametrize("journal", ["DELETE", "WAL"])
    @pytest.mark.parametrize(
        "made",
        [
            "CREATE TABLE songs (title TEXT)",
            "CREATE TABLE songs (title TEXT); PRAGMA user_version = 1",
            "CREATE TABLE songs (title TEXT); PRAGMA application_id = 7",
            "CREATE TABLE songs (title TEXT); DROP TABLE songs; PRAGMA application_id = 7",
        ],
    )
    def test_another_programs_database_is_refused_and_left_alone(self, path: Path, journal: str, made: str) -> None:
        """By whatever it can be told from ours; not even a log is left beside it."""
        with closing(sqlite3.connect(path)) as other:
            other.execute(f"PRAGMA journal_mode = {journal}")
            other.executescript(made)
        before = folder(path)
        with pytest.raises(ForeignStoreError, match="is the database of another program: give another path"):
            opened(path)
        assert folder(path) == before

    def test_a_database_another_program_has_open_is_refused_and_left_alone(self, path: Path) -> None:
        """What is still in its log counts too."""
        with closing(sqlite3.connect(path)) as other:
            other.execute("PRAGMA journal_mode = WAL")
            other.execute("CREATE TABLE songs (title TEXT)")
            before = folder(path)
            with pytest.raises(ForeignStoreError, match="of another program"):
                opened(path)
            after = folder(path)
            del before["store.db-shm"], after["store.db-shm"]  # whoever reads marks so in there
            assert after == before

    def test_a_file_in_use_by_a_migration_is_told_as_locked(self, path: Path) -> None:
        """Not as damaged; and opening it later works."""
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            with pytest.raises(StoreUnavailableError, match="locked by another process"):
                opened(path)
        opened(path).close()


class TestDamaged:
    @pytest.fixture
    def filled(self, path: Path, given: Given) -> Path:
        """A healthy file with a few runs in it."""
        with opened(path) as store:
            store.transaction(given.opened(), *(op for number in (1, 2) for op in given.until("merge", number)))
        return path

    @pytest.mark.parametrize(
        "header", [b"not a database at all, but quite a long text" * 40, b"SQLite format 3\0" * 300]
    )
    def test_what_is_no_database_is_reported_and_kept(self, path: Path, header: bytes) -> None:
        """Byte for byte: perhaps it is somebody's only copy of something."""
        path.write_bytes(header)
        before = folder(path)
        with pytest.raises(CorruptStoreError, match="is damaged and was left as it is: restore a copy"):
            opened(path)
        assert folder(path) == before

    @pytest.mark.parametrize("kept", [100, 4096, 20_000])
    def test_a_file_cut_short_is_reported_and_kept(self, filled: Path, kept: int) -> None:
        """As after a copy that ran out of space."""
        filled.write_bytes(filled.read_bytes()[:kept])
        before = folder(filled)
        with pytest.raises(CorruptStoreError, match="is damaged and was left as it is"):
            opened(filled)
        assert folder(filled) == before

    @pytest.mark.parametrize("table", ["sqlite_schema", "sessions", "runs", "turns", "turns_fts_data", "outbox"])
    def test_an_overwritten_page_is_reported_and_kept(self, filled: Path, table: str) -> None:
        """Of the schema, or the root of any table."""
        [(root,)] = query(filled, f"SELECT max(rootpage) FROM sqlite_master WHERE name = '{table}'")  # noqa: S608
        end = (1 if root is None else int(str(root))) * 4096
        content = bytearray(filled.read_bytes())
        content[end - 3900 : end] = b"\xff" * 3900  # behind the header of the file, where it is the first page
        if root is not None:
            content[end - 4096 : end - 3900] = b"\xff" * 196
        filled.write_bytes(content)
        before = folder(filled)
        with pytest.raises(CorruptStoreError, match="is damaged and was left as it is"):
            opened(filled)
        assert folder(filled) == before

    def test_damage_deeper_down_is_found_by_asking(self, filled: Path) -> None:
        """Opening does not read the whole file; ``problems`` does, and says what is wrong."""
        content = bytearray(filled.read_bytes())
        index = content.index(b"run-2")  # in a row, or in the index over it: both know the name
        content[index : index + 5] = b"run-9"
        filled.write_bytes(content)
        with opened(filled) as store:
            assert store.problems() != []


class TestViews:
    """Whoever knows the source documents can ask the file in their words."""

    def test_session_transcripts(self, store: Store, given: Given) -> None:
        """One row a session, its turns as one text, times as ISO text."""
        store.transaction(*given.until("merge", 1), given.merge(1)).result(10)
        with closing(sqlite3.connect(store.path)) as other:
            other.row_factory = sqlite3.Row
            row = dict(
                other.execute("SELECT * FROM session_transcripts WHERE session_key = ?", (given.parent,)).fetchone()
            )
        assert row.pop("content") == f"user: {given.merge(1).turns[0].text}"
        assert row == {
            "session_key": given.parent,
            "harness": None,
            "project": None,
            "agent_id": "default",
            "created_at": "1970-01-01T00:00:00.001Z",
            "updated_at": "1970-01-01T00:00:01.003Z",
            "completed_at": None,
        }

    def test_subagent_sessions(self, store: Store, given: Given) -> None:
        """One row a run, with every column of the document."""
        store.transaction(*given.until("merge", 1), *given.accept(2)).result(10)
        with closing(sqlite3.connect(store.path)) as other:
            other.row_factory = sqlite3.Row
            ended, waiting = map(dict, other.execute("SELECT * FROM subagent_sessions ORDER BY id").fetchall())
        assert ended == {
            "id": given.run_id(1),
            "runner_id": "default",
            "status": "completed",
            "created_at": "1970-01-01T00:00:01.000Z",
            "completed_at": "1970-01-01T00:00:01.002Z",
            "workspace_path": "/w",
            "spec_id": "spec-7",
            "prompt": given.packet(1).task,
            "files_json": '["a.md","b.md"]',
            "result_content": given.result(1).output,
            "token_input": 0,
            "token_output": 0,
            "duration_ms": 1,
            "error": None,
        }
        assert (waiting["status"], waiting["completed_at"], waiting["result_content"]) == ("pending", None, None)
