"""A transcript file that another program still writes: every line once, whatever happens to the file."""

from __future__ import annotations

import contextlib
import json
import threading
from typing import TYPE_CHECKING

import pytest
from _given import MAIN, a_store, open_session

from understudy.persistence import IngestConflictError, Ingested, StoreError
from understudy.persistence import ingest as module
from understudy.protocol import SessionKey
from understudy.protocol.model import Turn

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from understudy.persistence import Commit, Store
    from understudy.persistence.operations import Operation


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with a_store(tmp_path) as opened:
        open_session(opened)
        yield opened


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "transcript.jsonl"


def line(text: str, role: str = "user") -> str:
    return json.dumps({"message": {"role": role, "content": text}}) + "\n"


def append(file: Path, text: str | bytes) -> None:
    with file.open("ab") as stream:
        stream.write(text.encode() if isinstance(text, str) else text)


def said(store: Store, key: str = MAIN) -> list[str]:
    return [stored.turn.text for stored in store.transcripts.turns(key)]


def test_a_file_is_itself_however_its_path_is_spelled(store: Store, file: Path, tmp_path: Path) -> None:
    """By a detour or through a link: a harness and a person rarely spell it alike."""
    append(file, line("one"))
    (tmp_path / "link").symlink_to(tmp_path)
    assert store.ingest(file, MAIN) == Ingested(1)
    assert store.ingest(tmp_path / "link" / ".." / tmp_path.name / file.name, MAIN) == Ingested(0)
    assert store.ingest(tmp_path / "link" / file.name, MAIN) == Ingested(0)
    assert said(store) == ["one"]


def test_a_growing_file_is_read_from_where_the_last_reading_ended(store: Store, file: Path) -> None:
    """Each line becomes one turn, once; reading again stores nothing."""
    append(file, line("one") + line("two", "assistant"))
    assert store.ingest(file, MAIN) == Ingested(2)
    assert store.ingest(file, MAIN) == Ingested(0)
    append(file, line("three"))
    assert store.ingest(file, MAIN) == Ingested(1)
    assert [(stored.turn.role, stored.turn.text) for stored in store.transcripts.turns(MAIN)] == [
        ("user", "one"),
        ("assistant", "two"),
        ("user", "three"),
    ]


def test_only_what_is_new_is_read(store: Store, file: Path) -> None:
    """The parser sees each line once: an ingestion costs what was added."""
    seen: list[str] = []

    def parse(text: str) -> Turn:
        seen.append(text)
        return Turn("user", text)

    append(file, "".join(f"{n}\n" for n in range(1_000)))
    store.ingest(file, MAIN, parse=parse)
    seen.clear()
    append(file, "new\n")
    store.ingest(file, MAIN, parse=parse)
    assert seen == ["new"]


def test_where_it_ended_survives_a_restart(tmp_path: Path, file: Path) -> None:
    """The offset is in the database."""
    append(file, line("one"))
    for expected in (1, 0):
        with a_store(tmp_path) as store:
            open_session(store)
            assert store.ingest(file, MAIN) == Ingested(expected)


def test_a_line_that_is_still_being_written_waits(store: Store, file: Path) -> None:
    """Even cut inside a character; ``final`` takes it as it is."""
    whole = line("zwölf 🦊").encode().replace(b"\\u00f6", "ö".encode()).replace(b"\\ud83e\\udd8a", "🦊".encode())
    for cut in range(1, len(whole)):
        append(file, whole[:cut])
        assert store.ingest(file, MAIN) == Ingested(0)
        append(file, whole[cut:])
        assert store.ingest(file, MAIN) == Ingested(1)
    assert set(said(store)) == {"zwölf 🦊"}
    append(file, "no line break")
    assert store.ingest(file, MAIN, final=True) == Ingested(1)
    assert store.ingest(file, MAIN, final=True) == Ingested(0)
    append(file, "\n" + line("more"))
    assert store.ingest(file, MAIN) == Ingested(1)
    assert said(store)[-2:] == ["no line break", "more"]


def test_invalid_utf8_is_replaced(store: Store, file: Path) -> None:
    """One broken byte costs one character, not the line, and not the file."""
    append(file, b"caf\xe9 au lait\n\xff\xfe\x00\n" + line("next").encode())
    assert store.ingest(file, MAIN) == Ingested(3)
    assert said(store) == ["caf\ufffd au lait", "\ufffd\ufffd\ufffd", "next"]


def test_either_line_end_will_do(store: Store, file: Path) -> None:
    """CRLF leaves no carriage return behind, in plain text or JSON; U+2028 is no line end."""
    append(file, "plain\r\n" + line("json").replace("\n", "\r\n") + "a\u2028b\n\r\n")
    assert store.ingest(file, MAIN) == Ingested(3)
    assert said(store) == ["plain", "json", "a\u2028b"]


def test_an_empty_file_is_nothing_yet(store: Store, file: Path) -> None:
    """And one that does not exist is the caller's to know."""
    file.touch()
    assert store.ingest(file, MAIN) == Ingested(0)
    append(file, "\n\n   \n")
    assert store.ingest(file, MAIN) == Ingested(0)
    append(file, line("at last"))
    assert store.ingest(file, MAIN) == Ingested(1)
    with pytest.raises(FileNotFoundError):
        store.ingest(file.with_name("missing"), MAIN)


def test_a_file_that_shrank_is_read_anew_and_stores_nothing_twice(store: Store, file: Path) -> None:
    """What it still holds is known; what it then gains is new, repeated lines included."""
    append(file, line("one") + line("two") + line("two") + line("three"))
    store.ingest(file, MAIN)
    file.write_text(line("one") + line("two"))
    assert store.ingest(file, MAIN) == Ingested(0, restarted=True)
    append(file, line("two") + line("four"))
    assert store.ingest(file, MAIN) == Ingested(2)
    assert said(store) == ["one", "two", "two", "three", "two", "four"]


def test_a_file_cut_to_nothing_starts_over(store: Store, file: Path) -> None:
    """Also when the new content grows past the old end before anybody looks."""
    append(file, line("one"))
    store.ingest(file, MAIN)
    file.write_bytes(b"")
    assert store.ingest(file, MAIN) == Ingested(0, restarted=True)
    append(file, line("a much longer first line") + line("second"))
    assert store.ingest(file, MAIN) == Ingested(2, restarted=True)
    assert store.ingest(file, MAIN) == Ingested(0)


@pytest.mark.parametrize("length", ["shorter", "longer"])
def test_a_rotated_file_is_read_from_its_beginning(store: Store, file: Path, length: str) -> None:
    """Another file under the same name, whatever its size."""
    append(file, "".join(line(f"old {n}") for n in range(5)))
    store.ingest(file, MAIN)
    file.rename(file.with_suffix(".1"))
    new = 2 if length == "shorter" else 9
    append(file, "".join(line(f"new {n}") for n in range(new)))
    assert store.ingest(file, MAIN) == Ingested(new, restarted=True)
    assert said(store)[5:] == [f"new {n}" for n in range(new)]


def test_content_replaced_by_as_many_bytes_is_noticed(store: Store, file: Path) -> None:
    """The size is no proof; the kept line is not stored again."""
    append(file, line("kept") + line("aaaa"))
    store.ingest(file, MAIN)
    file.write_text(line("kept") + line("bbbb"))
    assert store.ingest(file, MAIN) == Ingested(1, restarted=True)
    assert said(store) == ["kept", "aaaa", "bbbb"]


def test_a_redacted_line_is_known_again(store: Store, file: Path) -> None:
    """It is compared as it was stored."""
    append(file, line("password: hunter2hunter2") + line("more"))
    store.ingest(file, MAIN)
    file.write_text(line("password: hunter2hunter2"))
    assert store.ingest(file, MAIN) == Ingested(0, restarted=True)


@pytest.mark.parametrize("changed", [False, True])
def test_a_crash_between_two_helpings_loses_and_repeats_nothing(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch, changed: bool
) -> None:
    """Of a file read for the first time, and of one that was rewritten and is read anew."""
    monkeypatch.setattr(module, "_HELPING", 64)
    lines = [f"line {n:02}" for n in range(30)]
    with a_store(tmp_path) as store:
        open_session(store)
        if changed:
            append(file, "gone\n" + "".join(f"{text}\n" for text in lines))
            store.ingest(file, MAIN)
            lines.append("new")
            file.write_text("".join(f"{text}\n" for text in lines))
        else:
            append(file, "".join(f"{text}\n" for text in lines))
        transaction = store.transaction
        for survived in range(3):
            left = iter(range(survived))

            def dies(*operations: Operation, left: Iterator[int] = left) -> Commit:
                if next(left, None) is None:
                    raise KeyboardInterrupt
                return transaction(*operations)

            with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
                patch.setattr(store, "transaction", dies)
                store.ingest(file, MAIN)
    with a_store(tmp_path) as store:
        store.ingest(file, MAIN)
        assert said(store) == (["gone"] if changed else []) + lines


def test_a_commit_that_failed_is_made_up_for(store: Store, file: Path) -> None:
    """Lines of a session that does not exist yet are not counted as read."""
    append(file, line("one"))
    with pytest.raises(StoreError):
        store.ingest(file, SessionKey("later"))
    key = open_session(store, "later")
    assert store.ingest(file, key) == Ingested(1)


@pytest.mark.parametrize("changed", [False, True])
def test_of_two_readers_at_once_one_stores(store: Store, file: Path, changed: bool) -> None:
    """The other is told, and finds nothing left; also when the file was replaced by one of the same size."""
    append(file, line("aaaa") + line("bbbb"))
    if changed:
        store.ingest(file, MAIN)
        file.write_text(line("cccc") + line("dddd"))
    before = said(store)
    inner: list[Ingested] = []

    def parse(text: str) -> Turn | None:
        if not inner:
            inner.append(Ingested(0))
            inner[0] = store.ingest(file, MAIN)
        return module.parse_line(text)

    with pytest.raises(IngestConflictError):
        store.ingest(file, MAIN, parse=parse)
    assert inner == [Ingested(2, restarted=changed)]
    assert store.ingest(file, MAIN) == Ingested(0)
    assert len(said(store)) == len(before) + 2


def test_many_threads_take_every_line_once(store: Store, file: Path) -> None:
    """While the file grows."""
    barrier = threading.Barrier(4)

    def read() -> None:
        barrier.wait()
        for _ in range(10):
            try:
                store.ingest(file, MAIN)
            except IngestConflictError:
                continue

    file.touch()
    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    barrier.wait()
    for n in range(100):
        append(file, line(str(n)))
    for thread in threads:
        thread.join()
    store.ingest(file, MAIN)
    assert said(store) == [str(n) for n in range(100)]
    assert store.problems() == []


@pytest.mark.parametrize(
    ("text", "turn"),
    [
        ('{"role": "assistant", "content": "flat"}', Turn("assistant", "flat")),
        ('{"message": {"role": "user", "content": [{"type": "text", "text": "a"}, "b"]}}', Turn("user", "a\nb")),
        ('{"message": {"role": "user", "content": [{"content": [{"text": "out"}]}]}}', Turn("user", "out")),
        ('{"role": "tool", "text": "by text"}', Turn("tool", "by text")),
        ('{"role": "assistant", "content": [{"type": "tool_use", "name": "x", "input": {}}]}', None),
        ('{"role": "robot", "content": "x"}', None),
        ('{"role": ["user"], "content": "x"}', None),
        ('{"role": {"a": 1}, "content": "x"}', None),
        ('{"role": null, "content": 5, "message": 7}', None),
        ('{"summary": "no message"}', None),
        ("[1, 2]", None),
        ("5", None),
        ("not json {", Turn("user", "not json {")),
        ("   ", None),
    ],
)  # fmt: skip
def test_a_line_is_read_for_what_was_said(text: str, turn: Turn | None) -> None:
    """Harnesses disagree about the shape; what is no conversation is no turn."""
    assert module.parse_line(text) == turn


@pytest.mark.parametrize("depth", [100, 400, 900, 5_000])
def test_no_line_can_stop_a_file(store: Store, file: Path, depth: int) -> None:
    """However deep it is nested: the next line is read."""
    append(file, '{"role": "user", "content": ' + "[" * depth + '"deep"' + "]" * depth + "}\n" + line("after"))
    assert store.ingest(file, MAIN) == Ingested(2)
    assert said(store)[-1] == "after"
