"""Codex: its profile and its stream."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from understudy.actors.runners.cli.profile import CliProfile
from understudy.actors.runners.cli.stream import JsonLines, as_text, beyond, count, reported, words
from understudy.protocol.runner import Touched
from understudy.protocol.usage import Usage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from understudy.protocol.files import FileMode
    from understudy.protocol.runner import RunnerEvent

_CHANGES: dict[str, FileMode] = {"add": "write", "update": "edit", "delete": "edit"}


class CodexStream(JsonLines):
    """``codex exec --json``: items that start and complete, in turns.

    Its usage is that of the whole thread, so on a resume what was spent before is taken off. An item of type
    ``error`` is a warning: it also comes with runs that succeed.
    """

    def _take(self, event: dict[str, Any]) -> Iterable[RunnerEvent] | None:
        kind = event.get("type")
        if kind == "thread.started":
            return self._identified(event["thread_id"])
        if kind in {"item.started", "item.completed"}:
            return self._item(event["item"], done=kind == "item.completed")
        if kind == "turn.started":
            self.complete = False
            return ()
        if kind == "turn.completed":
            return self._completed(event.get("usage") or {})
        if kind in {"turn.failed", "error"}:
            self.error = _message(event.get("error", event))
            return ()
        return None

    def _item(self, item: dict[str, Any], *, done: bool) -> Iterable[RunnerEvent] | None:
        kind, name = item["type"], item["id"]
        if kind == "agent_message":
            return self._spoken(name, item["text"]) if done else ()
        if kind == "command_execution":
            return self._tool(item, "shell", {"command": item["command"]}, item.get("aggregated_output"), done=done)
        if kind == "mcp_tool_call":
            result = item.get("result") or {}
            output = result.get("content") if isinstance(result, dict) else result
            return self._tool(item, f"{item['server']}/{item['tool']}", item.get("arguments"), output, done=done)
        if kind == "file_change":
            return self._changed(item, done=done)
        return None

    def _spoken(self, message: str, text: str) -> Iterator[RunnerEvent]:
        yield from self._said(message, text)
        self.answer = text

    def _tool(
        self, item: dict[str, Any], name: str, arguments: Any, output: object, *, done: bool
    ) -> Iterator[RunnerEvent]:
        if item["id"] not in self._telling.calls:
            yield from self._called(item["id"], item["id"], name, arguments)
        if done:
            yield from self._answered(item["id"], as_text(output), ok=item.get("status") == "completed")

    def _changed(self, item: dict[str, Any], *, done: bool) -> Iterator[RunnerEvent]:
        changes = {change["path"]: change["kind"] for change in item["changes"]}
        yield from self._tool(item, "apply_patch", {"changes": changes}, item.get("status"), done=done)
        if done and item.get("status") == "completed":
            for path, kind in changes.items():
                yield Touched(words(path), _CHANGES.get(kind, "edit"))

    def _completed(self, usage: dict[str, Any]) -> Iterator[RunnerEvent]:
        self.complete, self.error = True, None  # an error before this was overcome by trying again
        total = Usage(input_tokens=count(usage.get("input_tokens")), output_tokens=count(usage.get("output_tokens")))
        yield from reported(beyond(total, self._spent))
        self._spent = total


def _message(error: Any) -> str:
    """What the API said, where it is wrapped in JSON within the message."""
    text = str(error["message"])
    try:
        return str(json.loads(text)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return text


CODEX = CliProfile(
    name="codex",
    command="codex",
    fresh=("exec", "--json", "--skip-git-repo-check", "-"),
    resume=("exec", "resume", "--json", "--skip-git-repo-check", "{session}", "-"),
    model=("--model", "{model}"),
    stream=CodexStream,
    install="npm install -g @openai/codex@latest",
    credentials=("OPENAI_API_KEY", "CODEX_API_KEY"),
    needs=("CODEX_HOME",),
    unknown_session="no rollout found",
)
