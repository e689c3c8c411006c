"""Our hooks in somebody's settings: shown first, nothing else touched, and gone without a trace."""

from __future__ import annotations

import json
import os
import shlex
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
from _program import understudy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from understudy.gateway.hooks import installing
from understudy.gateway.hooks.claude_settings import EVENTS, entries, with_entries, without_entries
from understudy.gateway.hooks.installing import Origins

LOCAL = Path(".claude", "settings.local.json")
FOREIGN = {"type": "command", "command": "somebody-elses hook run claude-code", "timeout": 7}
ODD: dict[str, bytes] = {
    "empty": b"",
    "blank": b" \n\t\r\n",
    "object": b"{}",
    "object with a break": b"{\n}\n",
    "no last line break": b'{"model": "opus"}',
    "tabs": b'{\n\t"model": "opus",\n\t"hooks": {\n\t\t"Stop": []\n\t}\n}\n',
    "windows": b'{\r\n    "env": {"TOKEN": "s3cret"},\r\n    "hooks": {}\r\n}\r\n',
    "byte order mark": b'\xef\xbb\xbf{\n  "model": "opus"\n}',
    "one line": b'{"hooks":{"PreToolUse":[{"matcher":"Bash","hooks":[{"type":"command"}]}],"Stop":[ ]},"a":1.0}',
    "odd numbers and letters": '{ "n": [1e5, 1.50, -0, 12345678901234567890],\n "name": "caf\\u00e9 ☕ é" }\n'.encode(),
    "the same event": json.dumps({"hooks": {event: [{"hooks": [FOREIGN]}] for event in EVENTS}}, indent=4).encode(),
    "events of others": b'{"hooks": {"Notification": [{"hooks": [{"type": "command", "command": "bell"}]}]}}\n',
}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project and a user of its own."""
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in ("UNDERSTUDY_DB", "CLAUDE_CONFIG_DIR"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def written(content: bytes) -> None:
    LOCAL.parent.mkdir(exist_ok=True)
    LOCAL.write_bytes(content)


def ours(document: Any) -> list[str]:
    """The events that have one of our commands."""
    return [
        event
        for event, found in document.get("hooks", {}).items()
        for entry in found
        for hook in entry["hooks"]
        if " -m understudy.gateway.cli hook run claude-code " in hook.get("command", "")
    ]


@pytest.mark.parametrize("content", ODD.values(), ids=ODD.keys())
def test_there_and_back_is_the_same_file_to_the_byte(content: bytes) -> None:
    """Whatever was in it, and however it was written; and what was in it is in it meanwhile."""
    written(content)
    assert understudy("hook", "install", "--harness", "claude-code", "--yes").exit_code == 0
    now = LOCAL.read_bytes()
    document = json.loads(now.decode("utf-8-sig"))
    assert sorted(ours(document)) == sorted(EVENTS)
    before = json.loads(content.decode("utf-8-sig").strip() or "{}")
    for event, found in before.pop("hooks", {}).items():
        assert document["hooks"][event][: len(found)] == found
    assert {name: document[name] for name in before} == before
    again = understudy("hook", "install", "--yes")
    assert "nothing to do" in again.out
    assert LOCAL.read_bytes() == now
    assert understudy("hook", "uninstall", "--yes").exit_code == 0
    assert LOCAL.read_bytes() == content


def test_where_there_was_no_file_there_is_none_afterwards() -> None:
    """And no folder of ours either."""
    understudy("hook", "install", "--yes")
    assert LOCAL.exists()
    understudy("hook", "uninstall", "--yes")
    assert not LOCAL.parent.exists()
    LOCAL.parent.mkdir()
    understudy("hook", "install", "--yes")
    understudy("hook", "uninstall", "--yes")
    assert LOCAL.parent.is_dir()


def test_what_somebody_changed_meanwhile_stays() -> None:
    """Also a hook that was put beside ours, and one of ours that was moved."""
    written(b'{"hooks": {"Stop": []}}\n')
    understudy("hook", "install", "--yes")
    document = json.loads(LOCAL.read_text())
    document["model"] = "opus"
    document["hooks"]["PreCompact"][0]["hooks"].append(FOREIGN)
    document["hooks"]["Stop"].insert(0, {"hooks": [FOREIGN]})
    LOCAL.write_text(json.dumps(document, indent=1))
    understudy("hook", "uninstall", "--yes")
    left = json.loads(LOCAL.read_text())
    assert left == {"hooks": {"Stop": [{"hooks": [FOREIGN]}], "PreCompact": [{"hooks": [FOREIGN]}]}, "model": "opus"}
    written(b'{"hooks": {"Stop": []}}\n')
    understudy("hook", "install", "--yes")
    LOCAL.write_text(LOCAL.read_text().replace('{"hooks"', '{"model": "opus", "hooks"'))
    understudy("hook", "uninstall", "--yes")
    assert json.loads(LOCAL.read_text()) == {"model": "opus", "hooks": {"Stop": []}}


def test_without_the_memory_of_what_was_there_ours_are_still_taken_out(elsewhere: Path) -> None:
    """Only what is empty then goes as well."""
    written(b'{"model": "opus", "hooks": {"Stop": [{"hooks": []}]}}\n')
    understudy("hook", "install", "--yes")
    for file in (elsewhere / "state").rglob("*.json"):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        file.unlink()
    understudy("hook", "uninstall", "--yes")
    assert LOCAL.read_bytes() == b'{"model": "opus", "hooks": {"Stop": [{"hooks": []}]}}\n'


def test_installed_again_the_older_ones_go(elsewhere: Path) -> None:
    """Another database, another way: one set, and the way back is still to the beginning."""
    written(ODD["events of others"])
    for more in (["--db", "a.db"], ["--db", "b.db"], ["--http"], ["--db", "c.db"]):
        assert understudy("hook", "install", "--yes", *more).exit_code == 0
    text = LOCAL.read_text()
    assert (text.count("hook run claude-code"), text.count("/api/hooks/"), text.count("c.db")) == (len(EVENTS), 0, 9)
    understudy("hook", "uninstall", "--yes")
    assert LOCAL.read_bytes() == ODD["events of others"]


def test_shown_first_and_written_only_when_somebody_agrees() -> None:
    """A diff; --dry-run ends there, and so does whoever says nothing."""
    shown = understudy("hook", "install", "--dry-run")
    assert shown.exit_code == 0
    assert "+++ " in shown.out
    assert "hook run claude-code SessionStart" in shown.out
    refused = understudy("hook", "install")
    assert (refused.exit_code, refused.err) == (1, "understudy: nothing was written: say y, or --yes\n")
    assert not LOCAL.parent.exists()
    assert understudy("hook", "install", "--json").exit_code == 2
    told = understudy("hook", "install", "--json", "--yes").document
    assert (told["file"], told["changed"]) == (str(LOCAL.absolute()), True)
    assert understudy("hook", "install", "--json", "--dry-run").document["changed"] is False


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b'{"model": ', "is no JSON"),
        (b"// mine\n{}", "is no JSON"),
        (b'{"a": NaN}', "NaN is no JSON"),
        (b'{"hooks": {}, "hooks": {}}', "'hooks' stands there twice"),
        (b"[]", "is no JSON object"),
        (b'{"hooks": []}', 'has "hooks" that are no object'),
        (b'{"hooks": {"Stop": {}}}', "in which 'Stop' is no list"),
        (b"[" * 100_000, "is no JSON"),
        (b'{"model": "\xff"}', "is no UTF-8"),
    ],
)
@pytest.mark.parametrize("command", ["install", "uninstall"])
def test_settings_that_cannot_be_read_are_left_alone(content: bytes, why: str, command: str) -> None:
    """One sentence with the file, and nothing is written."""
    written(content)
    told = understudy("hook", command, "--yes")
    assert told.exit_code == 2
    assert told.err.count("\n") == 1
    assert str(LOCAL.absolute()) in told.err
    assert why in told.err
    assert LOCAL.read_bytes() == content
    assert list(LOCAL.parent.iterdir()) == [LOCAL]


def test_a_users_settings_may_be_a_link_and_stay_one(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As those who keep them elsewhere have it; its rights stay too."""
    real = elsewhere / "dotfiles.json"
    real.write_text('{"model": "opus"}')
    real.chmod(0o640)
    home = elsewhere / "claude"
    home.mkdir()
    (home / "settings.json").symlink_to(real)
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(home))
    assert understudy("hook", "install", "--user", "--yes").exit_code == 0
    assert (home / "settings.json").is_symlink()
    assert sorted(ours(json.loads(real.read_text()))) == sorted(EVENTS)
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    assert not LOCAL.exists()
    rows = understudy("hook", "status", "--json").document["settings"]
    assert [row["hooks"] for row in rows] == ["none", "9 command"]
    understudy("hook", "uninstall", "--user", "--yes")
    assert real.read_text() == '{"model": "opus"}'


def test_a_projects_link_that_leads_out_of_it_is_not_followed(elsewhere: Path) -> None:
    """A project is other people's; nothing but its own settings is written for it. Nor is what is no file."""
    secret = elsewhere / "profile.json"
    secret.write_text("{}")
    LOCAL.parent.mkdir()
    LOCAL.symlink_to(secret)
    told = understudy("hook", "install", "--yes")
    assert told.exit_code == 2
    assert "leads out of the project" in told.err
    assert secret.read_text() == "{}"
    LOCAL.unlink()
    os.mkfifo(LOCAL)
    assert "is no file of yours" in understudy("hook", "install", "--yes").err
    LOCAL.unlink()
    LOCAL.symlink_to(LOCAL.name)
    assert understudy("hook", "install", "--yes").exit_code == 2


def test_a_file_that_was_changed_while_one_looked_is_not_overwritten(elsewhere: Path) -> None:
    """What was shown is what would be lost."""
    written(b"{}")
    origins = Origins(elsewhere / "state")
    change = installing.install(installing.look_at(LOCAL), entries(elsewhere / "a.db"), origins)
    written(b'{"model": "opus"}')
    with pytest.raises(ValueError, match="was changed meanwhile: try again"):
        installing.carry_out(change, origins, keep=True)
    assert LOCAL.read_bytes() == b'{"model": "opus"}'


def test_no_token_stands_in_the_settings(elsewhere: Path) -> None:
    """A command reads it from its file; an HTTP hook gets it from the harness's environment."""
    (elsewhere / "t").write_text("ustd_secret")
    for database in ("a b.db", "it's.db"):
        understudy("hook", "install", "--yes", "--db", database, "--token-file", str(elsewhere / "t"))
        commands = [entry["hooks"][0] for (entry,) in json.loads(LOCAL.read_text())["hooks"].values()]
        words = shlex.split(commands[0]["command"])
        assert words[:4] == [sys.executable, "-P", "-m", "understudy.gateway.cli"]
        assert words[-4:] == ["--db", str(Path(database).absolute()), "--token-file", str(elsewhere / "t")]
        assert {command["timeout"] for command in commands} == {2}
    understudy("hook", "install", "--yes", "--http")
    text = LOCAL.read_text()
    assert "secret" not in text
    hooks = {event: entry["hooks"][0] for event, (entry,) in json.loads(text)["hooks"].items()}
    assert [event for event, hook in hooks.items() if hook["type"] == "command"] == ["SessionStart", "SessionEnd"]
    assert hooks["Stop"] == {
        "type": "http",
        "url": "http://127.0.0.1:8427/api/hooks/claude-code/Stop",
        "headers": {"Authorization": "Bearer $UNDERSTUDY_TOKEN"},
        "allowedEnvVars": ["UNDERSTUDY_TOKEN"],
        "timeout": 2,
    }


BLANKS = st.text(" \t\n\r", max_size=3)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
EVENT = st.sampled_from([*EVENTS, "Notification"])
ENTRY = st.lists(st.just(FOREIGN) | PLAIN, max_size=2).map(lambda hooks: {"hooks": hooks}) | PLAIN
WHOLE = st.dictionaries(st.text(max_size=3).filter(lambda name: name != "hooks"), PLAIN, max_size=3)


@pytest.mark.slow  # sixty settings of every shape
@given(
    others=WHOLE,
    hooks=st.none() | st.dictionaries(EVENT, st.lists(ENTRY, max_size=3), max_size=4),
    indent=st.none() | st.integers(0, 5) | st.just("\t"),
    ends=BLANKS,
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_settings_come_back(others: dict[str, Any], hooks: Any, indent: int | str | None, ends: str) -> None:
    """In every shape JSON has, with nothing else lost meanwhile; also from the text alone, but for what was empty."""
    document = others if hooks is None else {**others, "hooks": hooks}
    text = ends + json.dumps(document, indent=indent, ensure_ascii=bool(ends)) + ends
    there = with_entries(text, entries(Path("/a.db")))
    assert with_entries(text, entries(Path("/a.db"))) == there
    found = json.loads(there)
    assert sorted(event for event in EVENTS if entries(Path("/a.db"))[event] in found["hooks"][event]) == sorted(EVENTS)
    back = without_entries(there, text)
    assert json.loads(back) == document
    if hooks is None and others:
        assert back == text
