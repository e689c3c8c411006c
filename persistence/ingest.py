"""Taking in a transcript file that another program is still writing.

The file is read from where the last reading ended. The offset is committed together with the turns it accounts
for, so a crash in between neither loses a line nor stores one twice.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from understudy.persistence.operations import AppendTurns, SetIngestOffset
from understudy.protocol.model import Turn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from understudy.persistence.ledger import Ledger
    from understudy.protocol import SessionKey
    from understudy.protocol.model import Role

# One transaction takes about so much of the file: enough to be quick, little enough to keep others moving.
_HELPING = 1 << 20
# So many bytes at the head and before the offset tell whether the file is still the one that was read.
_ANCHOR = 4096
_ROLES = frozenset({"system", "user", "assistant", "tool"})


@dataclass(frozen=True, slots=True)
class Ingested:
    """How many turns were new; ``restarted`` when the file had been cut short, rotated or rewritten."""

    turns: int
    restarted: bool = False


def parse_line(line: str) -> Turn | None:
    """A line of a harness's JSON transcript as a turn; None for what is not conversation. Plain text is the user's."""
    if not line.strip():
        return None
    try:
        return _said(json.loads(line))
    except (ValueError, RecursionError):  # nested beyond reason, it is text like any other
        return Turn("user", line)


def _said(entry: object) -> Turn | None:
    if not isinstance(entry, dict):
        return None
    message = entry.get("message")
    if not isinstance(message, dict):
        message = entry
    role, text = message.get("role"), readable(message.get("content", message.get("text")))
    if not isinstance(role, str) or role not in _ROLES or not text.strip():
        return None
    return Turn(cast("Role", role), text)


def readable(content: object) -> str:
    """What is readable in a message: its text, and the text its tools answered with."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(part for part in map(readable, content) if part)
    if isinstance(content, dict):
        return readable(content.get("text", content.get("content")))
    return ""


class Ingest:
    """Takes transcript files in."""

    def __init__(self, store: Ledger, wall_ms: Callable[[], int]) -> None:
        self._store = store
        self._wall_ms = wall_ms

    def __call__(
        self,
        path: Path | str,
        session_key: SessionKey,
        *,
        parse: Callable[[str], Turn | None] = parse_line,
        final: bool = False,
    ) -> Ingested:
        """Store what ``path`` has gained since the last time as turns of an open session. Blocks.

        A last line without its line break is left for the next time, except when ``final``. Invalid UTF-8 is
        replaced. When the file was cut short, rotated or rewritten it is read anew, and only lines that the
        session does not have yet are stored.
        """
        name = str(Path(path).resolve())  # one file, however it is spelled
        with Path(name).open("rb") as file:
            known = self._store.transcripts.taken_in(name)
            restarted = known is not None and _anchor(file, known[0]) != known[1]
            seen = self._seen(session_key) if restarted else Counter[tuple[str, str]]()
            offset = 0 if known is None or restarted else known[0]
            helpings = _helpings(file, offset, final=final)
            if restarted:
                # In one commit: whoever continued after a crash half way would not know what to leave out.
                helpings = _as_one(helpings)
            count, before = 0, known
            for end, lines in helpings:
                turns = tuple(turn for turn in map(parse, lines) if turn is not None)
                fresh = tuple(turn for turn in turns if not self._known(turn, seen)) if seen else turns
                anchor = _anchor(file, end)
                commit = self._store.transaction(
                    AppendTurns(session_key, self._wall_ms(), fresh),
                    SetIngestOffset(name, session_key, end, anchor, before),
                )
                commit.result()
                count, before = count + len(fresh), (end, anchor)
        return Ingested(count, restarted)

    def _seen(self, session_key: SessionKey) -> Counter[tuple[str, str]]:
        return Counter((stored.turn.role, stored.turn.text) for stored in self._store.transcripts.turns(session_key))

    def _known(self, turn: Turn, seen: Counter[tuple[str, str]]) -> bool:
        # As it would be stored: what is compared was redacted when it was written.
        key = (turn.role, self._store.redactor.text(turn.text))
        if seen[key] <= 0:
            return False
        seen[key] -= 1
        return True


def _helpings(file: BinaryIO, offset: int, *, final: bool) -> Iterator[tuple[int, list[str]]]:
    """Whole lines from ``offset`` on, with the offset after them."""
    file.seek(offset)
    rest: list[bytes] = []
    while block := file.read(_HELPING):
        whole, newline, tail = block.rpartition(b"\n")
        if not newline:
            rest.append(tail)
            continue
        lines = b"".join([*rest, whole])
        rest = [tail]
        offset += len(lines) + 1
        yield offset, _lines(lines)
    left = b"".join(rest)
    if final and left:
        yield offset + len(left), _lines(left)


def _as_one(helpings: Iterator[tuple[int, list[str]]]) -> Iterator[tuple[int, list[str]]]:
    """All helpings in one; none stays none."""
    gathered = list(helpings)
    if gathered:
        yield gathered[-1][0], [line for _, lines in gathered for line in lines]


def _lines(whole: bytes) -> list[str]:
    return [line.removesuffix("\r") for line in whole.decode("utf-8", "replace").split("\n")]


def _anchor(file: BinaryIO, offset: int) -> str:
    """A fingerprint of what lies before ``offset``, of its head and of its end; leaves the position alone."""
    position = file.tell()
    file.seek(0)
    head = file.read(min(offset, _ANCHOR))
    file.seek(max(0, offset - _ANCHOR))
    end = file.read(min(offset, _ANCHOR))
    file.seek(position)
    return hashlib.sha256(b"%d:%b:%b" % (len(head) + len(end), head, end)).hexdigest()
