"""A Claude Code that the tests play: its captured payloads, moved to a home of the test's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

CAPTURES = Path(__file__).parents[2] / "data" / "claude-code"


def payloads(scenario: str, home: Path) -> list[dict[str, Any]]:
    """What its hooks got in one scenario, in order, with ``home`` as the user's."""
    files = sorted((CAPTURES / scenario).glob("*.json"))
    return [json.loads(file.read_text().replace("/home/dev", str(home))) for file in files]


def line(role: str, content: object, **more: object) -> str:
    """A line of a transcript."""
    return json.dumps({"type": role, "message": {"role": role, "content": content}, **more}) + "\n"


def transcript(home: Path, session: str, *lines: str) -> Path:
    """A session's transcript, where the harness has it."""
    path = home / ".claude" / "projects" / "-p" / f"{session}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(lines))
    return path
