"""No path a model can write, and no change of the file system in mid-operation, leads a file tool outside."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from understudy.actors.tools import ToolOutcome
from understudy.protocol import Receipt

if TYPE_CHECKING:
    from collections.abc import Callable

    from .conftest import Call, Roots

EVERY_TOOL: list[tuple[str, dict[str, Any]]] = [
    ("file_read", {}),
    ("file_write", {"content": "OVERWRITTEN"}),
    ("file_edit", {"old_text": "TOP", "new_text": "NO"}),
    ("list", {}),
    ("grep", {"pattern": "SECRET"}),
]


def is_refused(outcome: ToolOutcome, roots: Roots) -> bool:
    """Refused, silent about what is outside, without a receipt, and nothing outside was touched."""
    assert [path.name for path in roots.outside.iterdir()] == ["secret"]
    assert (roots.outside / "secret").read_text() == "TOP SECRET"
    assert "TOP SECRET" not in outcome.text
    assert outcome.receipts == () or not outcome.is_error
    return outcome.is_error and outcome.receipts == ()


@pytest.mark.parametrize(("tool", "arguments"), EVERY_TOOL)
@pytest.mark.parametrize(
    "path",
    [
        "../outside/secret",
        "sub/../../outside/secret",
        "{outside}/secret",
        "{cwd}/../outside/secret",
        "{cwd}/sub/../../outside/secret",
        "/proc/self/cwd/../../../../../../../../{outside}/secret",
        "/proc/self/root/{outside}/secret",
        "/proc/self/fd/0",
        "/dev/zero",
        "/",
        "..",
        "link-to-file",
        "link-to-folder/secret",
        "relative-link-to-folder/secret",
        "link-to-link/secret",
        "link-to-proc",
        "sub/up/../../outside/secret",
    ],
)
def test_no_path_leads_outside(call: Call, roots: Roots, tool: str, arguments: dict[str, Any], path: str) -> None:
    """Not by dots, not by an absolute path, not by a symlink to a file, folder, link or process."""
    (roots.cwd / "sub").mkdir()
    (roots.cwd / "sub" / "up").symlink_to("..")
    (roots.cwd / "link-to-file").symlink_to(roots.outside / "secret")
    (roots.cwd / "link-to-folder").symlink_to(roots.outside)
    (roots.cwd / "relative-link-to-folder").symlink_to("../outside")
    (roots.cwd / "link-to-link").symlink_to("relative-link-to-folder")
    (roots.cwd / "link-to-proc").symlink_to("/proc/self/fd/0")
    path = path.format(outside=roots.outside, cwd=roots.cwd)
    outcome = call(tool, path=path, **arguments)
    assert is_refused(outcome, roots)
    assert outcome.text == (f"path {path!r} leads outside: allowed is what lies below {roots.cwd} or {roots.workspace}")


def test_a_link_at_the_last_name_of_a_write_is_not_written_through(call: Call, roots: Roots) -> None:
    """Not even a dangling one, which open() with O_CREAT would follow."""
    (roots.cwd / "dangling").symlink_to(roots.outside / "new")
    assert is_refused(call("file_write", path="dangling", content="x"), roots)
    assert is_refused(call("file_write", path="deep/../dangling", content="x"), roots)


def test_links_that_stay_inside_work_and_the_receipt_names_the_real_file(call: Call, roots: Roots) -> None:
    """Relative, absolute, upwards, into the other root, and dangling ones for a write."""
    (roots.cwd / "a" / "b").mkdir(parents=True)
    (roots.cwd / "real.txt").write_text("inside")
    (roots.workspace / "notes.txt").write_text("noted")
    (roots.cwd / "a" / "b" / "up").symlink_to("../../real.txt")
    (roots.cwd / "absolute").symlink_to(roots.cwd / "a")
    (roots.cwd / "other-root").symlink_to(roots.workspace)
    (roots.cwd / "dangling").symlink_to("a/new.txt")
    real = Receipt(str(roots.cwd / "real.txt"), "read")
    assert call("file_read", path="a/b/up") == ToolOutcome("inside", (real,))
    assert call("file_read", path="absolute/b/up") == ToolOutcome("inside", (real,))
    assert call("file_read", path=f"{roots.cwd}/absolute/../real.txt") == ToolOutcome("inside", (real,))
    assert call("file_read", path="other-root/notes.txt").receipts == (
        Receipt(str(roots.workspace / "notes.txt"), "read"),
    )
    assert call("file_read", path="../workspace/notes.txt").text == "noted"
    written = call("file_write", path="dangling", content="made")
    assert written.receipts == (Receipt(str(roots.cwd / "a" / "new.txt"), "write"),)
    assert (roots.cwd / "dangling").is_symlink()
    assert (roots.cwd / "a" / "new.txt").read_text() == "made"


def test_roots_may_be_given_through_a_symlink(call: Call, roots: Roots) -> None:
    """As a temporary folder is on some systems: both spellings of an absolute path work."""
    real = roots.cwd.rename(roots.cwd.with_name("moved"))
    roots.cwd.symlink_to(real)
    (real / "a").write_text("found")
    for path in ("a", f"{roots.cwd}/a", f"{real}/a"):
        assert call("file_read", path=path) == ToolOutcome("found", (Receipt(str(real / "a"), "read"),))


def test_links_in_a_circle_end(call: Call, roots: Roots) -> None:
    """With a sentence."""
    (roots.cwd / "a").symlink_to("b")
    (roots.cwd / "b").symlink_to("a")
    assert call("file_read", path="a").text == "path 'a' goes through more than 40 symlinks"


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("", "path '' is not allowed: use 1 to 4096 characters without NUL"),
        ("a\0b", "path 'a\\x00b' is not allowed: use 1 to 4096 characters without NUL"),
        ("x" * 5000, f"path {'x' * 80!r} is not allowed: use 1 to 4096 characters without NUL"),
        ("\ud800", "path '\\ud800' is not allowed: it cannot be encoded as UTF-8"),
        ("x" * 300, f"{'x' * 300!r}: file name too long"),
    ],
)
def test_a_path_that_is_none_is_refused(call: Call, path: str, sentence: str) -> None:
    """In words."""
    assert call("file_read", path=path) == ToolOutcome(sentence, is_error=True)


def test_a_bottomless_path_is_refused_and_leaks_no_descriptor(call: Call, roots: Roots) -> None:
    """Each name on the way holds one, and each is closed again."""
    deepest = roots.cwd / "/".join("d" * 150)
    deepest.mkdir(parents=True)
    before = len(list(Path("/proc/self/fd").iterdir()))
    assert "is more than 100 folders deep" in call("list", path="/".join("d" * 150)).text
    for tool, arguments in EVERY_TOOL:
        call(tool, path="d/d/missing", **arguments)
        call(tool, path="d", **arguments)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def special_file(kind: str, path: Path) -> None:
    if kind == "FIFO":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(path))
    else:
        path.mkdir()


@pytest.mark.parametrize("kind", ["FIFO", "socket", "folder"])
@pytest.mark.parametrize(("tool", "arguments"), EVERY_TOOL[:3])
def test_what_is_no_file_is_refused_and_nothing_waits_for_it(
    call: Call, roots: Roots, monkeypatch: pytest.MonkeyPatch, tool: str, arguments: dict[str, Any], kind: str
) -> None:
    """Opening a FIFO would hang until somebody writes."""
    monkeypatch.chdir(roots.cwd.parent)
    special_file(kind, roots.cwd / "it")
    expected = f"'it' is a {kind}: only regular files are read and written"
    assert call(tool, path="it", **arguments) == ToolOutcome(expected, is_error=True)


def test_a_search_passes_special_files_and_links_over(call: Call, roots: Roots) -> None:
    """It neither hangs at a FIFO nor follows a link to what is outside."""
    os.mkfifo(roots.cwd / "fifo")
    (roots.cwd / "link").symlink_to(roots.outside)
    (roots.cwd / "file-link").symlink_to(roots.outside / "secret")
    (roots.cwd / "file").write_text("no secret here\n")
    assert call("grep", pattern="(?i)secret").text == "file:1:no secret here"
    assert call("list", depth=5).text.splitlines() == ["fifo", "file", "file-link@", "link@"]


def test_a_hard_link_is_the_file_it_is_but_is_never_written_through(call: Call, roots: Roots) -> None:
    """Nobody can tell it from the file itself; a write puts a new file in its place and leaves the other name alone."""
    os.link(roots.outside / "secret", roots.cwd / "hard")
    assert call("file_read", path="hard").text == "TOP SECRET"
    assert not call("file_edit", path="hard", old_text="TOP", new_text="NO").is_error
    assert (roots.cwd / "hard").read_text() == "NO SECRET"
    assert (roots.outside / "secret").read_text() == "TOP SECRET"


# -- races: the file system changes between any two of our system calls ------------------------------------

CALLS = ("open", "readlink", "stat", "fstat", "mkdir", "rename", "scandir")


class Saboteur:
    """Changes the file system just before the n-th system call of the file tools."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, strike_at: int, strike: Callable[[], None]) -> None:
        self.count = 0
        self.active = True
        for name in CALLS:
            monkeypatch.setattr(os, name, self._wrapped(getattr(os, name), strike_at, strike))

    def _wrapped(self, real: Callable[..., Any], strike_at: int, strike: Callable[[], None]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if self.active:
                self.count += 1
                if self.count == strike_at:
                    self.active = False
                    strike()
                    self.active = True
            return real(*arguments, **options)

        return call


def swap_file_for_link(roots: Roots) -> None:
    (roots.cwd / "sub" / "secret").unlink()
    (roots.cwd / "sub" / "secret").symlink_to(roots.outside / "secret")


def swap_folder_for_link(roots: Roots) -> None:
    (roots.cwd / "sub").rename(roots.cwd / "away")
    (roots.cwd / "sub").symlink_to(roots.outside)


def swap_link_for_another(roots: Roots) -> None:
    (roots.cwd / "via").unlink()
    (roots.cwd / "via").symlink_to(roots.outside)


def swap_file_for_fifo(roots: Roots) -> None:
    (roots.cwd / "sub" / "secret").unlink()
    os.mkfifo(roots.cwd / "sub" / "secret")


def remove_everything(roots: Roots) -> None:
    shutil.rmtree(roots.cwd / "sub")


@pytest.mark.parametrize("strike", [
    swap_file_for_link, swap_folder_for_link, swap_link_for_another, swap_file_for_fifo, remove_everything,
])  # fmt: skip
@pytest.mark.parametrize(("tool", "arguments"), EVERY_TOOL[:4])
def test_a_swap_between_any_two_system_calls_leads_nowhere(
    call: Call,
    roots: Roots,
    monkeypatch: pytest.MonkeyPatch,
    tool: str,
    arguments: dict[str, Any],
    strike: Callable[[Roots], None],
) -> None:
    """Struck before the first, the second, … the last call: the outside is never read, written or listed."""
    strike_at = 0
    while True:
        strike_at += 1
        shutil.rmtree(roots.cwd)
        (roots.cwd / "sub").mkdir(parents=True)
        (roots.cwd / "sub" / "secret").write_text("TOP inside")
        (roots.cwd / "via").symlink_to("sub")
        path = "via" if tool == "list" else "via/secret"
        with monkeypatch.context() as patch:
            saboteur = Saboteur(patch, strike_at, lambda: strike(roots))
            outcome = call(tool, path=path, **arguments)
            saboteur.active = False
        is_refused(outcome, roots)
        assert "failed:" not in outcome.text, "an error nobody explained"
        assert all(receipt.path.startswith(str(roots.cwd)) for receipt in outcome.receipts)
        assert not [name for _, _, names in os.walk(roots.cwd) for name in names if name.startswith(".understudy")]
        if saboteur.count < strike_at:
            break
    assert strike_at > 5, "the tool makes several system calls, and each was a chance"


def test_a_search_opens_what_it_searches_from_the_folder_it_holds(roots: Roots) -> None:
    """The program of grep, run here, struck before each system call."""
    from understudy.actors.tools import _grep_program  # noqa: PLC0415

    for strike_at in range(1, 12):
        shutil.rmtree(roots.cwd)
        (roots.cwd / "sub").mkdir(parents=True)
        (roots.cwd / "sub" / "secret").write_text("TOP inside")
        folder = os.open(roots.cwd, os.O_RDONLY)
        with pytest.MonkeyPatch.context() as patch:
            saboteur = Saboteur(patch, strike_at, lambda: swap_folder_for_link(roots))
            found = []
            for name, descriptor in _grep_program.files(folder, "", None):
                with os.fdopen(descriptor) as file:
                    found.append((name, file.read()))
            saboteur.active = False
        os.close(folder)
        assert all(text == "TOP inside" for _, text in found)
