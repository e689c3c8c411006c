"""Result files: private, whole or not there, inside their folder, and gone when their time is over."""

from __future__ import annotations

import json
import os
import sqlite3
import stat
import threading
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from _given import MAIN, Wall, a_delivered_run, a_store, accept, commit, deliver, finish

from understudy.persistence.operations import DeleteRun, MarkExported
from understudy.persistence.results import Results
from understudy.protocol import RunId, SessionKey

if TYPE_CHECKING:
    from pathlib import Path

    from understudy.persistence import Store


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def _files(store: Store) -> list[str]:
    """Every file below the results folder, hidden ones included."""
    return sorted(str(file.relative_to(store.results.root)) for file in store.results.root.rglob("*") if file.is_file())


def test_an_export_is_private_and_complete(tmp_path: Path) -> None:
    """0600 in 0700, whatever the umask; the full output beside the condensed one."""
    lenient = os.umask(0)
    try:
        with a_store(tmp_path) as store:
            packet = a_delivered_run(store, "r1", full="all that was found 🦊")
            path = store.results.export(packet.run_id)
            assert path == tmp_path / "results" / "agent%3Aatlas%3Asub%3Ar1" / "r1.json"
            assert [_mode(path), _mode(path.parent), _mode(path.parent.parent)] == [0o600, 0o700, 0o700]
            document = json.loads(path.read_text())
            assert (document["run_id"], document["output"], document["full_output"]) == (
                "r1",
                "found it",
                "all that was found 🦊",
            )
            assert _files(store) == ["agent%3Aatlas%3Asub%3Ar1/r1.json"]
    finally:
        os.umask(lenient)


def test_a_folder_that_others_can_read_is_closed_to_them(tmp_path: Path) -> None:
    """Also one that was there before."""
    with a_store(tmp_path) as store:
        packet = a_delivered_run(store, "r1")
        folder = store.results.path(packet.session_key, packet.run_id).parent
        folder.mkdir(parents=True)
        folder.chmod(0o777)
        store.results.export(packet.run_id)
        assert _mode(folder) == 0o700


def test_without_a_condensation_the_output_is_the_full_output(tmp_path: Path) -> None:
    """Nobody has to know at which level a result was condensed to read it in full."""
    with a_store(tmp_path) as store:
        path = store.results.export(a_delivered_run(store, "r1").run_id)
        assert path is not None
        assert json.loads(path.read_text())["full_output"] == "found it"


def test_a_nul_in_an_output_ends_nothing(tmp_path: Path) -> None:
    """To SQLite it is the end of a text: it is replaced, and what follows it is read in every way."""
    with a_store(tmp_path) as store:
        packet = accept(store, "r1", task="do\x00this")
        finish(store, packet, output="a\x00\x00b \\u0000 c")
        whole = "a\ufffd\ufffdb \\u0000 c"
        result = store.runs.result("r1")
        assert result is not None
        assert store.runs.full_output("r1") == result.output == whole
        with closing(sqlite3.connect(store.path)) as person:
            row = person.execute("SELECT prompt, result_content FROM subagent_sessions").fetchone()
        assert row == ("do\ufffdthis", whole)


def test_exporting_is_off_the_critical_path(tmp_path: Path) -> None:
    """No commit point writes a file, and a results folder that cannot be written costs nothing but the files."""
    (tmp_path / "results").write_text("in the way")
    with a_store(tmp_path) as store:
        packet = a_delivered_run(store, "r1", full="everything")
        assert (tmp_path / "results").read_text() == "in the way"
        with pytest.raises(OSError, match="results"):
            store.results.export(packet.run_id)
        assert store.runs.full_output(packet.run_id) == "everything"
        (tmp_path / "results").unlink()
        assert store.results.export_pending() == [packet.run_id]


def test_what_has_no_result_is_not_exported(tmp_path: Path) -> None:
    """Unknown, unfinished: None, and no folder."""
    with a_store(tmp_path) as store:
        packet = accept(store, "r1")
        assert store.results.export(packet.run_id) is None
        assert store.results.export(RunId("unknown")) is None
        assert not store.results.root.exists()


def test_recovery_exports_what_was_delivered_and_has_no_file(tmp_path: Path) -> None:
    """Once each, and nothing that waits for its delivery."""
    with a_store(tmp_path) as store:
        for name in ("r1", "r2"):
            a_delivered_run(store, name)
        waiting = accept(store, "r3")
        finish(store, waiting)
    with a_store(tmp_path) as store:
        assert store.results.export_pending() == ["r1", "r2"]
        assert store.results.export_pending() == []
        deliver(store, waiting)
        assert store.results.export_pending() == ["r3"]
        assert len(_files(store)) == 3


def test_a_crash_between_the_file_and_its_mark_exports_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is written anew, whole."""
    with a_store(tmp_path) as store:
        packet = a_delivered_run(store, "r1")
        path = store.results.path(packet.session_key, packet.run_id)

        def die(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(store, "transaction", die)
            with pytest.raises(KeyboardInterrupt):
                store.results.export(packet.run_id)
        path.write_text("half")
    with a_store(tmp_path) as store:
        assert store.results.export_pending() == [packet.run_id]
        assert json.loads(path.read_text())["output"] == "found it"


@pytest.mark.parametrize("step", ["fsync", "rename"])
def test_a_file_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """A disk that fails half way leaves the file of before and no debris."""
    with a_store(tmp_path) as store:
        packet = a_delivered_run(store, "r1")
        path = store.results.export(packet.run_id)
        assert path is not None
        path.write_text("the file of before")

        def fail(*_: object, **__: object) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(os, step, fail)
            with pytest.raises(OSError, match="No space"):
                store.results.export(packet.run_id)
        assert path.read_text() == "the file of before"
        assert _files(store) == ["agent%3Aatlas%3Asub%3Ar1/r1.json"]


def test_one_result_that_cannot_be_written_does_not_hold_up_the_others(tmp_path: Path) -> None:
    """They are exported; the failing one is tried again the next time, and said."""
    with a_store(tmp_path) as store:
        bad, good = a_delivered_run(store, "bad"), a_delivered_run(store, "good")
        obstacle = store.results.path(bad.session_key, bad.run_id).parent
        obstacle.parent.mkdir()
        obstacle.write_text("no folder")
        with pytest.raises(ExceptionGroup, match="1 of 2 results") as failed:
            store.results.export_pending()
        assert isinstance(failed.value.exceptions[0], OSError)
        assert store.results.path(good.session_key, good.run_id).exists()
        obstacle.unlink()
        assert store.results.export_pending() == [bad.run_id]


def test_two_threads_may_export_one_run(tmp_path: Path) -> None:
    """Neither takes the other's file away."""
    with a_store(tmp_path) as store:
        packet = a_delivered_run(store, "r1")
        barrier, failed = threading.Barrier(4), list[BaseException]()

        def export() -> None:
            barrier.wait()
            try:
                for _ in range(5):
                    store.results.export(packet.run_id)
            except BaseException as error:  # noqa: BLE001 - shown by the assertion
                failed.append(error)

        threads = [threading.Thread(target=export) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failed == []
        assert _files(store) == ["agent%3Aatlas%3Asub%3Ar1/r1.json"]


@pytest.mark.parametrize(
    "name", ["..", "../../x", "a/../../x", "/etc/passwd", ".hidden", "a\x00b", "", "a\nb", "%2e%2e"]
)
def test_a_hostile_name_is_no_name_at_all(tmp_path: Path, name: str) -> None:
    """What could leave the folder cannot even be said; a row that holds it all the same is refused."""
    for kind in (SessionKey, RunId):
        with pytest.raises(ValueError, match="not allowed"):
            kind(name)
    with a_store(tmp_path) as store:
        packet = a_delivered_run(store, "r1")
        store._writer._group.connection.execute("UPDATE runs SET session_key = ?", (name,))
        with pytest.raises(ValueError, match="not allowed"):
            store.results.export(packet.run_id)
        with pytest.raises(ExceptionGroup, match="1 of 1 results") as refused:
            store.results.sweep(ended_before=1_000)
        assert isinstance(refused.value.exceptions[0], ValueError)
        assert [file.name for file in tmp_path.iterdir() if not file.name.startswith("store.db")] == []


def test_names_that_are_alike_do_not_share_a_file(tmp_path: Path) -> None:
    """Odd but allowed ones stay one component each, and different."""
    keys = ["a:b", "a.b", "a..b", "a@b", "a+b", "a-b", "a_b", "A" * 200, "A" * 199 + "B", ":".join("a" * 100)]
    with a_store(tmp_path) as store:
        paths = {store.results.path(SessionKey(key), RunId("r1")) for key in keys}
        assert len(paths) == len(keys)
        assert {path.parent.parent for path in paths} == {store.results.root}


@pytest.mark.parametrize("where", ["root", "session", "file", "temporary"])
def test_a_planted_link_is_not_followed(tmp_path: Path, where: str) -> None:
    """Nothing outside the folder is written or removed, by an export or by a sweep."""
    outside = tmp_path / "outside"
    outside.mkdir()
    with a_store(tmp_path) as store:
        packet = a_delivered_run(store, "r1")
        path = store.results.path(packet.session_key, packet.run_id)
        precious = outside / (f"{path.parent.name}/r1.json" if where == "root" else "r1.json")
        precious.parent.mkdir(exist_ok=True)
        precious.write_text("precious")
        if where == "root":
            store.results.root.symlink_to(outside)
        else:
            store.results.root.mkdir()
        if where == "session":
            path.parent.symlink_to(outside)
        elif where in {"file", "temporary"}:
            path.parent.mkdir()
            name = path if where == "file" else path.with_name(f".{path.name}.{os.getpid()}")
            name.symlink_to(precious)
        if where in {"root", "session"}:
            with pytest.raises(OSError, match=r"symbolic|directory"):
                store.results.export(packet.run_id)
            with pytest.raises(ExceptionGroup, match="1 of 1 results"):
                store.results.sweep(ended_before=1_000)
        else:
            store.results.export(packet.run_id)
            assert json.loads(path.read_text())["output"] == "found it"
            assert not path.is_symlink()
            store.results.sweep(ended_before=1_000)
            assert not path.exists()
        assert precious.read_text() == "precious"


def test_a_sweep_takes_the_file_and_says_when_but_never_changes_the_end(tmp_path: Path) -> None:
    """swept_at once; facts, result and history stay."""
    wall = Wall(500)
    with a_store(tmp_path, wall_ms=wall) as store:
        old, new = a_delivered_run(store, "old", at=20, full="long"), a_delivered_run(store, "new", at=200)
        waiting = accept(store, "waiting")
        finish(store, waiting)
        store.results.export_pending()
        before = store.runs.get(old.run_id)
        assert store.results.sweep(ended_before=100) == [old.run_id]
        after = store.runs.get(old.run_id)
        assert before is not None
        assert after is not None
        assert (before.facts.swept_at, after.facts.swept_at) == (None, 500)
        assert (after.facts.end_reason, after.facts.ended_at, after.facts.delivered_at) == (
            before.facts.end_reason,
            before.facts.ended_at,
            before.facts.delivered_at,
        )
        wall.now = 900
        assert store.results.sweep(ended_before=100) == []
        assert store.runs.get(old.run_id) == after
        assert store.runs.result(old.run_id) is not None
        assert store.runs.full_output(old.run_id) == "found it"  # the condensed one is what is left
        assert _files(store) == [f"{new.session_key.file_name}/new.json"]
        assert not store.results.path(old.session_key, old.run_id).parent.exists()
        assert store.results.export(old.run_id) is None
        assert store.runs.get(waiting.run_id).facts.swept_at is None  # type: ignore[union-attr]
    with a_store(tmp_path) as store:
        assert store.results.export_pending() == []


def test_a_sweep_takes_what_a_crash_left_behind(tmp_path: Path) -> None:
    """A temporary file of a process that died holds the result too."""
    with a_store(tmp_path) as store:
        packet = a_delivered_run(store, "r1")
        path = store.results.export(packet.run_id)
        assert path is not None
        path.with_name(".r1.json.4711").write_text("half a result")
        path.with_name(".r10.json.4711").write_text("another run's")
        assert store.results.sweep(ended_before=1_000) == [packet.run_id]
        assert [file.name for file in path.parent.iterdir()] == [".r10.json.4711"]


def test_an_export_that_loses_to_a_sweep_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However the two interleave, what retention took does not come back."""
    with a_store(tmp_path) as store:
        packet = a_delivered_run(store, "r1")
        write = Results._write

        def swept_meanwhile(results: Results, session_key: SessionKey, run_id: RunId, text: str) -> None:
            assert store.results.sweep(ended_before=1_000) == [run_id]
            write(results, session_key, run_id, text)

        with monkeypatch.context() as patch:
            patch.setattr(Results, "_write", swept_meanwhile)
            assert store.results.export(packet.run_id) is None
        assert _files(store) == []


def test_a_sweep_that_meets_an_export_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exported between the sweep's removal and its mark."""
    with a_store(tmp_path) as store:
        packet = a_delivered_run(store, "r1")
        remove = Results._remove

        def exported_after(results: Results, session_key: SessionKey, run_id: RunId) -> None:
            remove(results, session_key, run_id)
            patch.undo()
            store.results.export(run_id)

        with monkeypatch.context() as patch:
            patch.setattr(Results, "_remove", exported_after)
            assert store.results.sweep(ended_before=1_000) == [packet.run_id]
        assert _files(store) == []


def test_a_forgotten_run_takes_its_file_along(tmp_path: Path) -> None:
    """Nobody could find the file any more; an unfinished run is not forgotten."""
    with a_store(tmp_path) as store:
        packet = a_delivered_run(store, "r1")
        store.results.export(packet.run_id)
        unfinished = accept(store, "r2")
        assert store.results.forget(unfinished.run_id) is False
        assert store.results.forget(packet.run_id) is True
        assert store.results.forget(packet.run_id) is False
        assert (_files(store), store.runs.get(packet.run_id)) == ([], None)
        assert commit(store, DeleteRun(packet.run_id), MarkExported(packet.run_id, 9)) == (False, False)
        assert store.sessions.get(MAIN) is not None
