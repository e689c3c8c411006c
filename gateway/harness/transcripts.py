"""Which files a payload may name: a harness's own transcript of the very session it speaks of, and no other."""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from understudy.gateway.harness import claude_code, openclaw
from understudy.gateway.harness.sighting import UnreadablePayloadError, needed, text_of
from understudy.protocol import SessionKey

if TYPE_CHECKING:
    from collections.abc import Mapping

# Both become parts of a path. The harness's are UUIDs and hexadecimal numbers.
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")


@dataclass(frozen=True, slots=True)
class Homes:
    """Where the harnesses of this user keep what they write down."""

    claude_code: tuple[Path, ...] = ()
    openclaw: tuple[Path, ...] = ()

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Self:
        """The usual folders, and those that the harnesses' own variables name."""
        home = Path(environ["HOME"]) if environ.get("HOME") else Path.home()
        return cls(
            tuple(_folders(environ.get("CLAUDE_CONFIG_DIR"), home / ".claude", "projects")),
            tuple(_folders(environ.get("OPENCLAW_STATE_DIR"), home / ".openclaw", "agents")),
        )


def with_believed_paths(harness: str, payload: Mapping[str, object], homes: Homes) -> dict[str, object]:
    """``payload`` with the transcripts that are believed, spelled as they are on disk, and no others.

    Who can send a payload can thereby have the server read a file, and search it afterwards.
    """
    believed = {name: value for name, value in payload.items() if not name.endswith("transcript_path")}
    if harness == claude_code.HARNESS:
        believed |= _of_claude_code(payload, homes.claude_code)
    elif harness == openclaw.HARNESS:
        believed |= _of_openclaw(payload, homes.openclaw)
    return believed


def _of_claude_code(payload: Mapping[str, object], folders: tuple[Path, ...]) -> dict[str, object]:
    """``projects/<project>/<session>.jsonl``, and ``…/<session>/subagents/agent-<agent>.jsonl``."""
    session, agent = _plain(needed(payload, "session_id")), text_of(payload, "agent_id")
    found: dict[str, object] = {}
    path, parts = _below(text_of(payload, "transcript_path"), folders)
    if parts[1:] == (f"{session}.jsonl",):
        found["transcript_path"] = path
    if agent is not None:
        beside = claude_code.beside(text_of(found, "transcript_path"), session, _plain(agent))
        path, parts = _below(text_of(payload, "agent_transcript_path") or beside, folders)
        its_own = parts[1:3] == (session, "subagents") and parts[-1] == f"agent-{agent}.jsonl"
        found["agent_transcript_path"] = path if its_own else None
    return found


def _of_openclaw(payload: Mapping[str, object], folders: tuple[Path, ...]) -> dict[str, str]:
    """``agents/<agent>/sessions/<file>.jsonl``, of the agent that the session's key names."""
    agent = openclaw.agent_of(SessionKey(needed(payload, "session_key")))
    path, parts = _below(text_of(payload, "transcript_path"), folders)
    its_own = parts[:2] == (agent, "sessions") and parts[-1].endswith(".jsonl")
    return {"transcript_path": path} if its_own else {}


def _below(path: str | None, folders: tuple[Path, ...]) -> tuple[str, tuple[str, ...]]:
    """Where a path really leads, and its parts below one of the folders; none where it leads out of them.

    A file that is not there yet may be named: it will be looked at again when it is read.
    """
    try:
        real = Path(path or "").resolve()
        if path is None or not Path(path).is_absolute() or (real.exists() and not _ours(real.stat())):
            return "", ()
        for folder in folders:
            if real.is_relative_to(folder.resolve()):
                return str(real), real.relative_to(folder.resolve()).parts
    except (OSError, ValueError, RuntimeError):  # too long, a NUL in it, links in a circle
        pass
    return "", ()


def _plain(name: str) -> str:
    if _PLAIN.fullmatch(name) is None:
        raise UnreadablePayloadError(f"{name[:60]!r} names no session: there must be letters, digits, - and _")
    return name


def _folders(named: str | None, usual: Path, below: str) -> list[Path]:
    return [Path(folder) / below for folder in (named, usual) if folder]


def _ours(found: os.stat_result) -> bool:
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()
