"""What each CLI needs to live in a scratch folder and to talk to the scripted server."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from server import Step

if TYPE_CHECKING:
    from pathlib import Path

KEY = "a-key-that-opens-nothing"
REFUSED = "the scripted server refuses this"
ANSWER = "scenes: {scenes}. heard: {heard}"


@dataclass(frozen=True)
class Part:
    """A CLI's part in the play: how it is dressed, and the tools by the names it knows them by."""

    name: str
    env: dict[str, str]
    arguments: tuple[str, ...]
    file_tool: Step
    touched: str
    shell_tool: Step

    def scenes(self) -> dict[str, list[Step]]:
        """The answers of its model."""
        return {
            "tool": [self.file_tool, Step(ANSWER)],
            "again": [Step(ANSWER)],
            "shell": [self.shell_tool, Step(ANSWER)],
            "refused": [Step(REFUSED, status=400)],
        }


def dress(name: str, url: str, home: Path, project: Path, wait: str) -> Part:
    """Write its settings below ``home``; ``wait`` is the command its shell tool shall run."""
    return _DRESSERS[name](url, home, project, wait)


def _claude(url: str, home: Path, project: Path, wait: str) -> Part:
    return Part(
        "claude",
        {
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_API_KEY": KEY,
            "CLAUDE_CONFIG_DIR": str(home / ".claude"),
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        },
        ("--allowedTools", "Bash", "Read"),
        Step(tool="Read", arguments={"file_path": str(project / "hello.txt")}),
        "hello.txt",
        Step(tool="Bash", arguments={"command": wait}),
    )


def _codex(url: str, home: Path, _project: Path, wait: str) -> Part:
    (home / ".codex").mkdir()
    provider = {"name": "scripted", "base_url": f"{url}/v1", "env_key": "OPENAI_API_KEY", "wire_api": "responses"}
    lines = ['model = "scripted"', 'model_provider = "scripted"', "[model_providers.scripted]"]
    lines += [f"{key} = {json.dumps(value)}" for key, value in provider.items()]
    lines += ["request_max_retries = 0", "stream_max_retries = 0"]
    (home / ".codex" / "config.toml").write_text("\n".join(lines))
    # It has no tool to read files: it patches one, by the word its shell understands for that.
    patch = "apply_patch <<'EOF'\n*** Begin Patch\n*** Add File: new.txt\n+hello\n*** End Patch\nEOF\n"
    return Part(
        "codex",
        {"CODEX_HOME": str(home / ".codex"), "OPENAI_API_KEY": KEY},
        ("--dangerously-bypass-approvals-and-sandbox",),
        Step(tool="exec_command", arguments={"cmd": patch}),
        "new.txt",
        Step(tool="exec_command", arguments={"cmd": wait, "yield_time_ms": 30_000}),
    )


def _gemini(url: str, home: Path, project: Path, wait: str) -> Part:
    (home / ".gemini").mkdir()
    settings = {"security": {"auth": {"selectedType": "gemini-api-key"}}}
    (home / ".gemini" / "settings.json").write_text(json.dumps(settings))
    return Part(
        "gemini",
        {"GEMINI_API_KEY": KEY, "GOOGLE_GEMINI_BASE_URL": url},
        ("--approval-mode", "yolo", "--model", "gemini-2.5-flash"),
        Step(tool="read_file", arguments={"file_path": str(project / "hello.txt")}),
        "hello.txt",
        Step(tool="run_shell_command", arguments={"command": wait}),
    )


def _opencode(url: str, home: Path, project: Path, wait: str) -> Part:
    options = {"baseURL": f"{url}/v1", "apiKey": KEY}
    provider: dict[str, Any] = {"npm": "@ai-sdk/openai-compatible", "options": options, "models": {"scripted": {}}}
    config = home / "opencode.json"
    config.write_text(json.dumps({"model": "scripted/scripted", "provider": {"scripted": provider}}))
    return Part(
        "opencode",
        {"OPENCODE_CONFIG": str(config)},
        (),
        Step(tool="read", arguments={"filePath": str(project / "hello.txt")}),
        "hello.txt",
        Step(tool="bash", arguments={"command": wait, "description": "wait", "timeout": 600_000}),
    )


def _copilot(url: str, home: Path, project: Path, wait: str) -> Part:
    return Part(
        "copilot",
        {
            "COPILOT_OFFLINE": "true",
            "COPILOT_PROVIDER_BASE_URL": f"{url}/v1",
            "COPILOT_PROVIDER_TYPE": "openai",
            "COPILOT_MODEL": "gpt-4.1",
            "COPILOT_HOME": str(home / ".copilot"),
        },
        ("--allow-all-tools",),
        Step(tool="view", arguments={"path": str(project / "hello.txt")}),
        "hello.txt",
        Step(tool="bash", arguments={"command": wait, "description": "wait", "initial_wait": 120}),
    )


_DRESSERS = {"claude": _claude, "codex": _codex, "gemini": _gemini, "opencode": _opencode, "copilot": _copilot}
