"""A CLI for tests: a real program on the PATH that plays a recorded stream and writes down how it was called."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

CAPTURES = Path(__file__).parents[1] / "data" / "cli-streams"


class StandIn:
    """Stands in for a CLI of some name; its calls are kept in a folder of its own, never in its cwd."""

    def __init__(self, folder: Path, project: Path, name: str) -> None:
        self._folder = folder
        self._project = project
        self._program = folder / "bin" / name
        self._notes = folder / f"{name}-notes"
        self._notes.mkdir()

    def plays(self, *streams: str, then: str = "", first: str = "") -> None:
        """Print these captures in the project's paths; ``first`` and ``then`` are shell commands around them."""
        shown = []
        for number, stream in enumerate(streams):
            (source,) = CAPTURES.glob(f"{stream}.jsonl")
            copy = self._notes / f"stream-{number}"
            copy.write_text(source.read_text().replace("/home/dev/project", str(self._project)))
            shown.append(f"cat {shlex.quote(str(copy))}")
        self.does("\n".join([first, *shown, then]))

    def does(self, commands: str) -> None:
        """Run these shell commands, after it has written down how it was called."""
        notes = shlex.quote(str(self._notes))
        self._program.write_text(
            f"""#!/bin/sh
printf '%s\\0' "$@" > {notes}/argv
env -0 > {notes}/env
pwd -P > {notes}/cwd
cat > {notes}/stdin
{commands}
"""
        )
        self._program.chmod(0o755)

    @property
    def argv(self) -> list[str]:
        """The arguments of its last call."""
        return self._note("argv").split("\0")[:-1]

    @property
    def env(self) -> dict[str, str]:
        """The environment of its last call."""
        return dict(entry.split("=", 1) for entry in self._note("env").split("\0")[:-1])

    @property
    def stdin(self) -> str:
        """What it was told."""
        return self._note("stdin")

    @property
    def cwd(self) -> str:
        """Where it ran."""
        return self._note("cwd").strip()

    def _note(self, name: str) -> str:
        return (self._notes / name).read_text()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Where the child works."""
    folder = (tmp_path / "project").resolve()
    folder.mkdir()
    (folder / "hello.txt").write_text("SECRET-FILE-CONTENT-42\n")
    return folder


@pytest.fixture
def stand_in(tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], StandIn]:
    """Makes programs that stand in for CLIs of these names."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    return lambda name: StandIn(tmp_path, project, name)
