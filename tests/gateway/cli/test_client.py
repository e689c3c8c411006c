"""A server is found by what it says beside the database, and only believed where that can be true."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest
from _program import run_of, understudy
from _scene import a_host_at_work, elsewhere  # noqa: F401 - fixtures

from understudy.actors.host import process_started
from understudy.gateway.cli.client import find_server

if TYPE_CHECKING:
    from pathlib import Path

    from understudy.actors import Runtime


@pytest.mark.parametrize(
    "state",
    [
        "",
        "[]",
        "{}",
        '{"url": "http://127.0.0.1:1", "pid": "x", "process_started": 1, "token_file": "t"}',
        '{"url": "http://127.0.0.1:1", "pid": 1, "process_started": 1, "token_file": "t"}',
        '{"url": "http://example.org", "pid": PID, "process_started": STARTED, "token_file": "t"}',
        '{"url": "file:///etc/passwd", "pid": PID, "process_started": STARTED, "token_file": "t"}',
    ],
)
def test_a_state_file_that_lies_names_no_server(state: str, tmp_path: Path) -> None:
    """Garbage, a process that is gone or another one's number, an address that is not this machine's."""
    me = os.getpid()
    told = state.replace("PID", str(me)).replace("STARTED", str(process_started(me)))
    (tmp_path / "agents.db.server").write_text(told)
    assert find_server(None) is None


def test_a_server_that_no_longer_answers_is_said_to_be_gone(host: Runtime, tmp_path: Path) -> None:
    """Its process lives, and nobody listens at its address: commands refuse, doctor calls it broken."""
    me = os.getpid()
    (tmp_path / "t").write_text("token\n")
    state = {
        "url": "http://127.0.0.1:1",
        "pid": me,
        "process_started": process_started(me),
        "token_file": str(tmp_path / "t"),
    }
    (tmp_path / "agents.db.server").write_text(json.dumps(state))
    told = understudy("kill", run_of(host, "waiter"))
    assert told.exit_code == 3
    assert "the server at http://127.0.0.1:1 does not answer" in told.err
    told = understudy("doctor", "--json")
    assert told.exit_code == 1
    assert [found["what"] for found in told.document["findings"] if found["verdict"] == "broken"] == ["server"]
