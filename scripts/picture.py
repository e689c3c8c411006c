"""A picture of a run, from a run: the demo is played, and what its tree looked like is drawn."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.text import Text

from understudy.gateway.demo.acts import first_act, second_act
from understudy.gateway.demo.stage import Following, Shown, tree
from understudy.gateway.demo.workers import write_project
from understudy.persistence import StoreView

PICTURE = Path(__file__).parents[1] / "docs" / "demo.svg"
WIDTH = 74

# Rich's own frame fetches its font from elsewhere, which no page that shows a picture allows.
FRAME = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<title>A parent and its sub-agents, before and after its host was killed</title>
<style>
.{unique_id}-matrix {{
  font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: {char_height}px; line-height: {line_height}px;
}}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: sans-serif; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/>
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


class Film(Following):
    """A stage that keeps its last picture in a file, where it outlives the host."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._file = file
        self.said: list[str] = []

    def say(self, text: str) -> None:
        """A line of the story."""
        self.said.append(text)

    def show(self, text: str) -> None:
        """Not in the picture."""

    def changed(self, shown: Shown, what: str) -> None:  # noqa: ARG002 - the whole tree is drawn
        """Draw it anew."""
        console = a_console()
        console.print(tree(self.shown))
        aside = self._file.with_suffix(".new")
        aside.write_text(console.export_text(styles=True), encoding="utf-8")
        aside.replace(self._file)


def a_console() -> Console:
    """One that shows nothing, and keeps everything."""
    return Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="standard")


def draw(folder: Path) -> str:
    """Both acts, the first in a process of its own since it is killed, and what was to be seen."""
    write_project(folder / "project")
    ended = subprocess.run([sys.executable, __file__, str(folder)], check=False).returncode
    if ended != -signal.SIGKILL:
        sys.exit(f"the first host should have been killed, and ended with {ended}")
    died_at = time.time() * 1000
    before = (folder / "first").read_text(encoding="utf-8")
    film = Film(folder / "second")
    if second_act(folder, film):
        sys.exit("something is missing")
    console = a_console()
    console.print(Text.from_ansi(before.strip()))
    console.print(Text.assemble("\n", ("kill -9", "bold red"), " … and the next host on the same file:\n"))
    console.print(tree(ended_since(died_at, folder / "agents.db")))
    console.print("\n" + "\n".join(film.said[-2:]) + "\n", highlight=False)
    return console.export_svg(title="./scripts/demo", code_format=FRAME, unique_id="demo")


def ended_since(died_at: float, database: Path) -> dict[str, Shown]:
    """What the second host brought to an end; some of it before anybody could look on."""
    with StoreView.open(database) as view:
        shown = {}
        for run in reversed(view.runs.find().items):
            facts = run.facts
            if facts.ended_at is None or facts.started_at is None or facts.ended_at < died_at:
                continue
            end, seconds = str(facts.end_reason), (facts.ended_at - facts.started_at) / 1000
            merged = "; merged" if facts.delivered_at is not None else ""
            note = f"{end} after {seconds:.1f} s{merged}"
            shown[run.run_id] = Shown(run.label, run.depth, run.parent_run_id, end, note)
        return shown


def main() -> None:
    """The picture; or, with a folder, the act that dies."""
    if len(sys.argv) > 1:
        folder = Path(sys.argv[1])
        first_act(folder, Film(folder / "first"))
    with tempfile.TemporaryDirectory() as name:
        PICTURE.write_text(draw(Path(name)), encoding="utf-8")
    print(f"{os.path.relpath(PICTURE)}: look at it before you commit it")


if __name__ == "__main__":
    main()
