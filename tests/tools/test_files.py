"""The file tools do what they say, within their bounds."""

from __future__ import annotations

import asyncio
import os
import re
import stat
from typing import TYPE_CHECKING, Any

import pytest
from _extent import so_far
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from understudy.actors import SystemClock
from understudy.actors._kernel.pool import BlockingPool
from understudy.actors.tools import ToolContext, ToolOutcome, _reading, file_edit, files, search
from understudy.protocol import Receipt

if TYPE_CHECKING:
    from pathlib import Path

    from understudy.actors.testing import ManualClock

    from .conftest import Call, Roots


class TestRead:
    def test_a_whole_file_comes_as_it_is(self, call: Call, roots: Roots) -> None:
        """Line ends and all; with a receipt."""
        (roots.cwd / "a").write_bytes("eins\r\nzwei é\n".encode())
        assert call("file_read", path="a") == ToolOutcome("eins\r\nzwei é\n", (Receipt(str(roots.cwd / "a"), "read"),))

    def test_some_lines_come_with_the_exact_count_of_what_is_left_out(self, call: Call, roots: Roots) -> None:
        """And with where to go on."""
        (roots.cwd / "a").write_text("".join(f"line {n}\n" for n in range(1, 10)))
        assert call("file_read", path="a", offset=3, limit=2).text == (
            "line 3\nline 4\n\n"
            "[35 bytes omitted after this, go on with offset=5]\n"
            "[14 bytes omitted before line 3]"
        )  # fmt: skip

    def test_the_end_of_a_file_is_told(self, call: Call, roots: Roots) -> None:
        """As an error that says how long it is."""
        (roots.cwd / "a").write_text("1\n2\n3")
        assert call("file_read", path="a", offset=3).text == "3\n[4 bytes omitted before line 3]"
        assert call("file_read", path="a", offset=4).text == "offset = 4 is beyond the end: 'a' has 3 lines"
        (roots.cwd / "empty").touch()
        assert call("file_read", path="empty").text == "'empty' is empty"
        assert call("file_read", path="nothing").text == "'nothing' does not exist"

    @settings(suppress_health_check=list(HealthCheck), max_examples=so_far(60, 1_000))
    @given(
        lines=st.lists(st.text(st.characters(exclude_characters="\n\0", exclude_categories=["Cs"]), max_size=9)),
        offset=st.integers(1, 8),
        limit=st.integers(1, 8),
        chunk=st.integers(1, 9),
    )
    def test_reading_on_and_on_gives_the_whole_file(
        self, tmp_path: Path, lines: list[str], offset: int, limit: int, chunk: int
    ) -> None:
        """For any content, window and chunk size: what is shown and what is said to be omitted add up."""
        data = "\n".join(lines).encode()
        path = tmp_path / "file"
        path.write_bytes(data)
        with pytest.MonkeyPatch.context() as patch, path.open("rb", buffering=0) as file:
            patch.setattr(_reading, "_CHUNK", chunk)
            start = _reading._start_of(file, "file", offset)
            body, count = _reading._cut(data[start:], limit) if data[start:] else (b"", 0)
        whole = re.findall(rb"[^\n]*\n|[^\n]+", data)
        assert data[:start] == b"".join(whole[: offset - 1])
        assert body == b"".join(whole[offset - 1 :][:limit])
        assert count == len(whole[offset - 1 :][:limit])

    def test_one_endless_line_is_cut_between_characters(self, call: Call, roots: Roots) -> None:
        """And its rest is counted in bytes."""
        (roots.cwd / "a").write_text("é" * 100_000)
        text = call("file_read", path="a").text
        shown, _, note = text.partition("\n")
        assert shown == "é" * (_reading.MAX_BYTES // 2)
        assert note == f"[{200_000 - _reading.MAX_BYTES} bytes omitted after this, the rest of this line is too long]"

    @pytest.mark.parametrize("size", range(_reading.MAX_BYTES - 5, _reading.MAX_BYTES + 1))
    def test_a_cut_never_splits_a_character(self, size: int) -> None:
        """Wherever it falls in two, three or four bytes."""
        data = b"x" * size + "é€😀".encode() * 10
        _reading._whole_characters(data[: _reading.MAX_BYTES]).decode()

    def test_a_large_file_is_read_in_bounded_memory(self, call: Call, roots: Roots) -> None:
        """A sparse gigabyte: its first line is shown at once, and a line too far in is refused."""
        with (roots.cwd / "a").open("wb") as file:
            file.write(b"x" * _reading._BINARY_PROBE + b"\n")
            file.truncate(1 << 30)
        assert call("file_read", path="a", limit=1).text.endswith(
            f"[{(1 << 30) - _reading._BINARY_PROBE - 1} bytes omitted after this, go on with offset=2]"
        )

    def test_a_line_too_far_into_a_file_is_refused(
        self, call: Call, roots: Roots, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Everything before it would have to be read."""
        monkeypatch.setattr(_reading, "MAX_SKIPPED", 10)
        (roots.cwd / "a").write_text("x" * 100 + "\n")
        assert call("file_read", path="a", offset=3).text == ("line 3 of 'a' lies beyond the first 10 bytes: use grep")

    def test_binary_is_refused_and_broken_text_is_marked(self, call: Call, roots: Roots) -> None:
        """A NUL makes it binary; bytes that are no UTF-8 are shown as such."""
        (roots.cwd / "binary").write_bytes(b"\x7fELF\0\0")
        (roots.cwd / "latin").write_bytes("café\n".encode("latin-1"))
        assert call("file_read", path="binary").text == "'binary' is binary (6 bytes): only text can be read"
        assert call("file_read", path="latin").text == (
            "caf\ufffd\n\n[it is not all UTF-8: what cannot be decoded is shown as \ufffd]"
        )


class TestWrite:
    def test_a_file_is_made_with_its_folders(self, call: Call, roots: Roots) -> None:
        """With the permissions a shell would give it."""
        outcome = call("file_write", path="a/b/c.txt", content="é\n")
        assert outcome == ToolOutcome("created 'a/b/c.txt': 3 bytes", (Receipt(str(roots.cwd / "a/b/c.txt"), "write"),))
        mask = os.umask(0)
        os.umask(mask)
        made = (roots.cwd / "a/b/c.txt").stat()
        assert stat.S_IMODE(made.st_mode) == 0o666 & ~mask

    def test_a_file_is_replaced_at_once_and_keeps_its_permissions(self, call: Call, roots: Roots) -> None:
        """A new file takes the old one's place: who has it open still reads the old one whole."""
        path = roots.cwd / "script"
        path.write_text("old")
        path.chmod(0o750)
        with path.open() as reader:
            assert call("file_write", path="script", content="new").text == "replaced 'script': 3 bytes"
            assert reader.read() == "old"
        assert path.read_text() == "new"
        assert stat.S_IMODE(path.stat().st_mode) == 0o750
        assert [path.name for path in roots.cwd.iterdir()] == ["script"]

    def test_a_write_that_fails_leaves_the_old_file_and_no_litter(
        self, call: Call, roots: Roots, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As when the disk is full at the very last step."""
        (roots.cwd / "a").write_text("old")

        def full(*_: object, **__: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "rename", full)
        assert call("file_write", path="a", content="new") == ToolOutcome("'a': no space left on device", is_error=True)
        assert (roots.cwd / "a").read_text() == "old"
        assert [path.name for path in roots.cwd.iterdir()] == ["a"]

    def test_what_is_too_large_or_no_text_is_refused(self, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
        """With the number."""
        monkeypatch.setattr(files, "MAX_WRITE", 10)
        assert call("file_write", path="a", content="x" * 11).text == "content has 11 bytes: at most 10 are allowed"
        assert call("file_write", path="a", content="\ud800").is_error


class TestEdit:
    @pytest.fixture(autouse=True)
    def file(self, roots: Roots) -> None:
        (roots.cwd / "a").write_bytes(b"one\ntwo\n\xfftwo three\naaa\n")

    def test_one_exact_piece_is_replaced_and_all_else_stays(self, call: Call, roots: Roots) -> None:
        """Bytes that are no text included."""
        outcome = call("file_edit", path="a", old_text="two\n", new_text="2\n")
        assert outcome == ToolOutcome("edited 'a' at line 2", (Receipt(str(roots.cwd / "a"), "edit"),))
        assert (roots.cwd / "a").read_bytes() == b"one\n2\n\xfftwo three\naaa\n"

    @pytest.mark.parametrize(
        ("old", "new", "sentence"),
        [
            ("four", "x", "old_text does not occur in 'a': read the file and copy the text exactly"),
            ("two", "x", "old_text occurs more than once in 'a': add lines around it until it is unique"),
            ("aa", "x", "old_text occurs more than once in 'a': add lines around it until it is unique"),
            ("one", "one", "old_text and new_text are the same: nothing would change"),
            ("", "x", "file_edit was not run: old_text: String should have at least 1 character"),
        ],
    )
    def test_what_is_not_unique_is_refused(self, call: Call, roots: Roots, old: str, new: str, sentence: str) -> None:
        """Occurrences that overlap count as two; the file is as it was."""
        assert call("file_edit", path="a", old_text=old, new_text=new) == ToolOutcome(sentence, is_error=True)
        assert (roots.cwd / "a").read_bytes() == b"one\ntwo\n\xfftwo three\naaa\n"

    def test_edits_of_one_file_in_parallel_all_land(self, roots: Roots) -> None:
        """A model's tool calls run at once: none starts from a text that another is about to replace."""
        (roots.cwd / "a").write_text("".join(f"<{n}>\n" for n in range(40)))

        async def main() -> list[ToolOutcome]:
            pool = BlockingPool(asyncio.get_running_loop(), SystemClock(), limit=8)
            context = ToolContext(str(roots.cwd), str(roots.workspace), SystemClock(), pool.run)
            try:
                return await asyncio.gather(
                    *(
                        file_edit.call({"path": "a", "old_text": f"<{n}>", "new_text": f"[{n}]"}, context)
                        for n in range(40)
                    )
                )
            finally:
                pool.close()

        assert not [outcome for outcome in asyncio.run(main()) if outcome.is_error]
        assert (roots.cwd / "a").read_text() == "".join(f"[{n}]\n" for n in range(40))

    def test_what_somebody_else_wrote_meanwhile_is_not_buried(
        self, call: Call, roots: Roots, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Seen just before the new file takes its place."""
        real = files._unchanged

        def late(found: Any, before: Any) -> None:
            (roots.cwd / "a").write_text("somebody else's")
            real(found, before)

        monkeypatch.setattr(files, "_unchanged", late)
        assert call("file_edit", path="a", old_text="one", new_text="1").text == (
            "'a' was changed by somebody else meanwhile: read it again"
        )
        assert (roots.cwd / "a").read_text() == "somebody else's"


class TestList:
    def test_folders_come_first_and_levels_are_counted(self, call: Call, roots: Roots) -> None:
        """A listing is no touch: it gives no receipt."""
        (roots.cwd / "z" / "deep").mkdir(parents=True)
        (roots.cwd / "z" / "deep" / "file").touch()
        (roots.cwd / "a").touch()
        (roots.cwd / "empty").mkdir()
        assert call("list") == ToolOutcome("empty/\nz/\na")
        assert call("list", depth=3).text.splitlines() == ["empty/", "z/", "z/deep/", "z/deep/file", "a"]
        assert call("list", path="empty").text == "'empty' is empty"
        assert call("list", path="a").text == "'a': not a directory"

    def test_what_does_not_fit_is_counted(self, call: Call, roots: Roots, monkeypatch: pytest.MonkeyPatch) -> None:
        """Exactly, up to a bound, and then at least."""
        for n in range(20):
            (roots.cwd / f"{n:02}").touch()
        monkeypatch.setattr(files, "MAX_ENTRIES", 2)
        assert call("list").text == "00\n01\n[… 18 more omitted: list a folder further down]"
        monkeypatch.setattr(files, "_MAX_COUNTED", 5)
        assert call("list").text == "00\n01\n[… at least 5 more omitted: list a folder further down]"

    def test_a_name_that_is_not_utf_8_is_spelled_out(self, call: Call, roots: Roots) -> None:
        """It can be stored and sent."""
        with open(os.fsencode(roots.cwd) + b"/\xff", "wb"):  # noqa: PTH123
            pass
        assert call("list").text == "\\udcff"


class TestGrep:
    @pytest.fixture(autouse=True)
    def tree(self, roots: Roots) -> None:
        (roots.cwd / "src").mkdir()
        (roots.cwd / "src" / "a.py").write_text("import os\nimport sys\n# Import\n")
        (roots.cwd / "src" / "b.txt").write_text("import nothing\r\n")
        (roots.cwd / "src" / "binary").write_bytes(b"import\0")
        (roots.cwd / ".git").mkdir()
        (roots.cwd / ".git" / "config").write_text("import\n")

    def test_matches_come_as_file_line_text(self, call: Call) -> None:
        """Sorted; binary files and hidden folders are passed over; a search is no touch."""
        expected = "src/a.py:1:import os\nsrc/a.py:2:import sys\nsrc/b.txt:1:import nothing"
        assert call("grep", pattern="^import") == ToolOutcome(expected)
        assert call("grep", pattern="^import s", path="src").text == "src/a.py:2:import sys"
        assert call("grep", pattern="os$", path="src/a.py").text == "src/a.py:1:import os"
        assert call("grep", pattern="IMPORT", ignore_case=True, glob="*.txt").text == "src/b.txt:1:import nothing"
        assert call("grep", pattern="nowhere").text == "no match"

    def test_a_pattern_that_is_none_is_refused(self, call: Call) -> None:
        """With what is wrong about it."""
        assert call("grep", pattern="(").text == (
            "the search failed: pattern '(' is not a regular expression: "
            "missing ), unterminated subpattern at position 0"
        )
        assert call("grep", pattern="x", path="missing").text == "'missing' does not exist"

    def test_matches_lines_and_files_are_bounded(
        self, call: Call, roots: Roots, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What is left out is counted; of a long line the part around the match is shown."""
        monkeypatch.setattr(search, "MAX_MATCHES", 2)
        monkeypatch.setattr(search, "MAX_LINE", 20)
        monkeypatch.setattr(search, "MAX_FILE", 500)
        (roots.cwd / "long").write_text("x" * 200 + "needle" + "y" * 200)
        (roots.cwd / "large").write_text("import" * 100)
        assert (
            call("grep", pattern="needle").text
            == "long:1:…xxxxxneedleyyyyyyyyy…\n[1 files over 500 bytes were not searched]"
        )
        assert call("grep", pattern="import", path="src").text == (
            "src/a.py:1:import os\nsrc/a.py:2:import sys\n"
            "[… 1 more matching lines omitted: narrow the pattern or the path]"
        )

    def test_an_expression_that_takes_for_ever_is_stopped_with_what_was_found(
        self, roots: Roots, stopped_clock: ManualClock
    ) -> None:
        """In another process: Python's engine would hold this one's interpreter, loop and all."""
        (roots.cwd / "a").write_text("aaab\n")
        (roots.cwd / "b").write_text("a" * 60 + "!\n")

        async def main() -> ToolOutcome:
            pool = BlockingPool(asyncio.get_running_loop(), stopped_clock, limit=1)
            context = ToolContext(str(roots.cwd), str(roots.workspace), stopped_clock, pool.run)
            call = asyncio.ensure_future(search.grep.call({"pattern": "^(a+)+b$"}, context))
            while stopped_clock.next_timer is None:
                await asyncio.sleep(0)
            await stopped_clock.advance_async(search.SECONDS)
            pool.close()
            return await call

        outcome = asyncio.run(main())
        assert outcome.is_error
        assert outcome.text.endswith("the search was stopped after 15 seconds: simplify the pattern or narrow the path")


@pytest.mark.parametrize("path", [".mcp.json", "sub/.MCP.json", "link"])
def test_the_file_that_names_mcp_servers_is_not_written(call: Call, roots: Roots, path: str) -> None:
    """Who writes it runs programs with the next sub-agent, which is more than writing files."""
    (roots.cwd / "link").symlink_to(".mcp.json")
    outcome = call("file_write", path=path, content='{"mcpServers": {"x": {"command": "sh"}}}')
    assert outcome == ToolOutcome(
        f"{path!r} is not written by tools: it names programs that start with a sub-agent", is_error=True
    )
    (roots.cwd / ".mcp.json").write_text('{"mcpServers": {}}')
    assert call("file_edit", path="link", old_text="{}", new_text='{"x": {"command": "sh"}}').is_error
    assert (roots.cwd / ".mcp.json").read_text() == '{"mcpServers": {}}'
