"""How things are shown: framed and coloured in a terminal, plain columns of whole values in a pipe, or JSON."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text
from rich.tree import Tree as RichTree

from understudy.gateway.cli.harmless import harmless, one_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

STYLES = {
    "completed": "green",
    "running": "cyan",
    "pending": "blue",
    "failed": "red",
    "killed": "red",
    "watchdog_timeout": "yellow",
    "ghost_sweep": "magenta",
    "ok": "green",
    "broken": "bold red",
    "note": "yellow",
}
"""Words that have a colour, wherever they stand in a column of their own."""

_GAP = 2
_NARROWEST = 8


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    name: str
    narrow: Literal["whole", "fold", "cut"] = "whole"
    """What a narrow terminal does to it; a pipe gets every value whole."""
    right: bool = False


@dataclass(slots=True)
class Branch:
    """A line of a tree, with what is below it."""

    head: str
    state: str = ""
    note: str = ""
    below: list[Branch] = field(default_factory=list)


def print_json(document: object) -> None:
    """One JSON document, in plain ASCII: whatever is in it, it can neither steer a terminal nor fail to be printed."""
    print(json.dumps(document, indent=2))


def print_json_line(document: object) -> None:
    """One JSON document on a line of its own, at once."""
    print(json.dumps(document), flush=True)


def print_line(text: str = "") -> None:
    """A line of text that may be from elsewhere."""
    print(harmless(text))


def print_text(text: str, *, indent: int) -> None:
    """Several lines from elsewhere, set in; a terminal gets long ones wrapped."""
    if _terminal():
        _console().print(Padding(Text(harmless(text)), (0, 0, 0, indent)))
        return
    for line in harmless(text).splitlines():
        print(" " * indent + line)


def print_heading(text: str) -> None:
    """What the next lines are about, after a free line."""
    print()
    if _terminal():
        _console().print(Text(one_line(text), style="bold"))
    else:
        print(one_line(text))


def print_table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """A table; in a pipe with every value whole, on one line a row."""
    cells = [[one_line(cell) for cell in row] for row in rows]
    if _terminal():
        _print_framed(columns, cells)
        return
    lines = [[column.name for column in columns], *cells]
    widths = [max(len(line[at]) for line in lines) for at in range(len(columns))]
    for line in lines:
        parts = (
            cell.rjust(width) if column.right else cell.ljust(width)
            for column, cell, width in zip(columns, line, widths, strict=True)
        )
        print("  ".join(parts).rstrip())


def print_passages(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """A table whose last column is a passage of text: in a terminal it stands below the rest of its row."""
    if not _terminal():
        print_table(columns, rows)
        return
    for row in rows:
        *head, passage = (one_line(cell) for cell in row)
        _console().print(Text("  ".join(head), style="bold"))
        print_text(passage, indent=2)


def print_tree(root: Branch) -> None:
    """A tree: with lines in a terminal, by indentation in a pipe."""
    if _terminal():
        _console().print(_grown(RichTree(_label(root), guide_style="dim"), root))
        return
    for depth, branch in _walk(root, 0):
        parts = (one_line(part) for part in (branch.head, branch.state, branch.note) if part)
        print("  " * depth + "  ".join(parts))


def moment(at: int | None) -> str:
    """A time of the store, in the local time zone, in a terminal without today's date; a dash where there is none."""
    if at is None:
        return "-"
    try:
        then = datetime.fromtimestamp(at / 1000, tz=UTC).astimezone()
    except (OverflowError, OSError, ValueError):
        return str(at)  # beyond the calendar
    today = _terminal() and then.date() == datetime.now(UTC).astimezone().date()
    return then.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M:%S")


def duration(milliseconds: int | None) -> str:
    """A length of time, as short as it can be read."""
    if milliseconds is None:
        return "-"
    seconds = milliseconds / 1000
    if seconds < 60:  # noqa: PLR2004 - below a minute
        return f"{seconds:.1f}s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{rest:02}s"


def money(dollars: float) -> str:
    """What something cost; a dash for nothing."""
    return f"${dollars:.4f}" if dollars else "-"


def _terminal() -> bool:
    return sys.stdout.isatty()


def _console() -> Console:
    return Console(highlight=False, markup=False, emoji=False)


def _print_framed(columns: Sequence[Column], cells: Sequence[Sequence[str]]) -> None:
    console = _console()
    widths = [max(map(cell_len, values)) for values in zip([column.name for column in columns], *cells, strict=True)]
    # What is left for the one that may be cut; left to itself, rich would cut them all a little.
    left = console.width - sum(width for column, width in zip(columns, widths, strict=True) if column.narrow != "cut")
    table = RichTable(box=None, header_style="bold", pad_edge=False, padding=(0, _GAP, 0, 0))
    for column in columns:
        cut = column.narrow == "cut"
        table.add_column(
            column.name,
            justify="right" if column.right else "left",
            overflow="ellipsis" if cut else "fold",
            no_wrap=column.narrow != "fold",
            max_width=max(left - _GAP * (len(columns) - 1), _NARROWEST) if cut else None,
        )
    for row in cells:
        table.add_row(*(Text(cell, style=STYLES.get(cell, "")) for cell in row))
    console.print(table)


def _label(branch: Branch) -> Text:
    parts = [
        (one_line(branch.head), "bold"),
        (one_line(branch.state), STYLES.get(branch.state, "")),
        (one_line(branch.note), "dim"),
    ]
    return Text("  ").join(Text(text, style=style) for text, style in parts if text)


def _grown(tree: RichTree, branch: Branch) -> RichTree:
    for child in branch.below:
        _grown(tree.add(_label(child)), child)
    return tree


def _walk(branch: Branch, depth: int) -> Iterator[tuple[int, Branch]]:
    yield depth, branch
    for child in branch.below:
        yield from _walk(child, depth + 1)
