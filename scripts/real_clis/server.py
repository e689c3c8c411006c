"""A model server for tests: answers by a scene that the prompt names, in the wire formats of four providers."""

from __future__ import annotations

import gzip
import json
import re
import threading
import uuid
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar, Self

NAMED = re.compile(r"\[\[scene:([\w-]+)\]\]")
BLAND = "Very well."
# What side questions of a CLI that must be answered in JSON ask for, in one object.
_BLAND_JSON = json.dumps({"reasoning": "plain", "next_speaker": "user", "model_choice": "flash", "complexity_score": 1})
_TOKENS_SAID = 20


@dataclass(frozen=True)
class Step:
    """One answer: words, a tool call, or a refusal of the whole request."""

    text: str = ""
    tool: str | None = None
    arguments: Any = field(default_factory=dict)
    status: int = 200


@dataclass
class Asked:
    """A request in no provider's words: what users said, how often tools were called, which tools are on offer."""

    said: list[str] = field(default_factory=list)
    results: list[str] = field(default_factory=list)
    tools: set[str] = field(default_factory=set)
    custom_tools: set[str] = field(default_factory=set)

    def user(self, text: str) -> None:
        """A user speaks; what tools answered before belongs to an earlier scene if this names a new one."""
        if NAMED.search(text):
            self.results = []
        self.said.append(text)

    def step(self, scenes: dict[str, list[Step]]) -> Step:
        """What the scene has next. A request without tools is a side question of the CLI's."""
        names = [name for text in self.said for name in NAMED.findall(text)]
        if not names or not (self.tools or self.custom_tools):
            return Step(BLAND)
        scene = scenes[names[-1]]
        step = scene[min(len(self.results), len(scene) - 1)]
        heard = "; ".join(result.strip()[:200] for result in self.results)
        return Step(
            step.text.format(scenes=" then ".join(dict.fromkeys(names)), heard=heard) if step.text else "",
            step.tool,
            step.arguments,
            step.status,
        )


def _texts(content: Any) -> list[str]:
    if isinstance(content, str):
        return [content]
    return [part["text"] for part in content or () if isinstance(part, dict) and isinstance(part.get("text"), str)]


def _from_messages(body: dict[str, Any]) -> Asked:
    asked = Asked(tools={tool["name"] for tool in body.get("tools") or () if "name" in tool})
    for message in body.get("messages") or ():
        content = message.get("content")
        if message.get("role") != "user":
            continue
        for block in [{"type": "text", "text": content}] if isinstance(content, str) else content or ():
            if block.get("type") == "tool_result":
                asked.results.append("\n".join(_texts(block.get("content"))))
            elif block.get("type") == "text":
                asked.user(block["text"])
    return asked


def _from_responses(body: dict[str, Any]) -> Asked:
    asked = Asked()
    for tool in body.get("tools") or ():
        names = asked.custom_tools if tool.get("type") == "custom" else asked.tools
        names.add(tool.get("name") or tool.get("type", ""))
    for item in body.get("input") or ():
        if item.get("type") in {"function_call_output", "custom_tool_call_output"}:
            output = item.get("output")
            asked.results.append(output if isinstance(output, str) else "\n".join(_texts(output)))
        elif item.get("role") == "user":
            for text in _texts(item.get("content")):
                asked.user(text)
    return asked


def _from_chat(body: dict[str, Any]) -> Asked:
    asked = Asked(tools={tool["function"]["name"] for tool in body.get("tools") or () if "function" in tool})
    for message in body.get("messages") or ():
        for text in _texts(message.get("content")):
            if message.get("role") == "user":
                asked.user(text)
            elif message.get("role") == "tool":
                asked.results.append(text)
    return asked


def _from_gemini(body: dict[str, Any]) -> Asked:
    offered = [made for tool in body.get("tools") or () for made in tool.get("functionDeclarations") or ()]
    asked = Asked(tools={made["name"] for made in offered})
    for content in body.get("contents") or ():
        for part in content.get("parts") or ():
            if "functionResponse" in part:
                asked.results.append(json.dumps(part["functionResponse"].get("response")))
            elif content.get("role") == "user" and isinstance(part.get("text"), str):
                asked.user(part["text"])
    return asked


class Handler(BaseHTTPRequestHandler):
    """Speaks HTTP; every answer that can be a stream is one."""

    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class calls it so
        """Say nothing."""

    def do_HEAD(self) -> None:
        """Somebody looks whether we are there."""
        self._json({})

    def do_GET(self) -> None:
        """Somebody looks around: there is one model."""
        self._json({"object": "list", "data": [{"id": "scripted", "object": "model", "type": "model"}]})

    def do_POST(self) -> None:
        """A call of the model."""
        body = json.loads(self._body() or b"{}")
        path = self.path.partition("?")[0]
        if path.endswith(("/count_tokens", ":countTokens")):
            self._json({"input_tokens": 1, "totalTokens": 1})
            return
        for ending, (understand, answer) in self._formats.items():
            if path.endswith(ending):
                asked = understand(body)
                self.server.bodies.append(body)
                step = asked.step(self.server.scenes)
                if step.status != 200:
                    error = {"type": "invalid_request_error", "message": step.text, "code": step.status}
                    self._json({"type": "error", "error": error}, step.status)
                else:
                    answer(self, body, step, asked)
                return
        self._json({"error": {"type": "not_found_error", "message": f"no such thing as {path}"}}, 404)

    def _body(self) -> bytes:
        if self.headers.get("transfer-encoding", "").lower() == "chunked":
            body = b""
            while size := int(self.rfile.readline().strip() or b"0", 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
        return gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body

    def _json(self, value: object, status: int = 200) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _stream(self, *events: tuple[str | None, object]) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True
        for name, value in events:
            data = value if isinstance(value, str) else json.dumps(value)
            self.wfile.write(f"event: {name}\n".encode() if name else b"")
            self.wfile.write(f"data: {data}\n\n".encode())

    # -- each provider's words ------------------------------------------------------------------------

    def _as_messages(self, body: dict[str, Any], step: Step, _asked: Asked) -> None:
        blocks: list[tuple[dict[str, Any], dict[str, Any]]] = []  # each as it begins, and its one delta
        if step.text:
            blocks.append(({"type": "text", "text": ""}, {"type": "text_delta", "text": step.text}))
        if step.tool:
            begun = {"type": "tool_use", "id": _name("toolu"), "name": step.tool, "input": {}}
            blocks.append((begun, {"type": "input_json_delta", "partial_json": json.dumps(step.arguments)}))
        usage = {
            "input_tokens": 100,
            "output_tokens": 1,
            "cache_read_input_tokens": 0,
            "cache_creation_input_tokens": 0,
        }
        message = {
            "id": _name("msg"),
            "type": "message",
            "role": "assistant",
            "model": body.get("model"),
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }
        stop = {"stop_reason": "tool_use" if step.tool else "end_turn", "stop_sequence": None}
        if not body.get("stream"):
            content = [{"type": "text", "text": step.text}]
            self._json({**message, **stop, "content": content})
            return
        events: list[dict[str, Any]] = [{"type": "message_start", "message": message}]
        for index, (begun, delta) in enumerate(blocks):
            events += [
                {"type": "content_block_start", "index": index, "content_block": begun},
                {"type": "content_block_delta", "index": index, "delta": delta},
                {"type": "content_block_stop", "index": index},
            ]
        events += [
            {"type": "message_delta", "delta": stop, "usage": {"output_tokens": _TOKENS_SAID}},
            {"type": "message_stop"},
        ]
        self._stream(*((event["type"], event) for event in events))

    def _as_response(self, body: dict[str, Any], step: Step, asked: Asked) -> None:
        items: list[dict[str, Any]] = []
        if step.text:
            content = [{"type": "output_text", "text": step.text, "annotations": []}]
            items.append({"type": "message", "id": _name("msg"), "role": "assistant", "content": content})
        if step.tool in asked.custom_tools:
            called = {"type": "custom_tool_call", "call_id": _name("call"), "name": step.tool, "input": step.arguments}
            items.append({**called, "id": _name("ctc"), "status": "completed"})
        elif step.tool:
            called = {"type": "function_call", "call_id": _name("call"), "name": step.tool}
            items.append({**called, "id": _name("fc"), "arguments": json.dumps(step.arguments), "status": "completed"})
        response = {"id": _name("resp"), "object": "response", "status": "completed", "model": body.get("model")}
        usage = {"input_tokens": 100, "output_tokens": _TOKENS_SAID, "total_tokens": 100 + _TOKENS_SAID}
        done = {**response, "output": items, "usage": usage}
        if not body.get("stream"):
            self._json(done)
            return
        events: list[dict[str, Any]] = [{"type": "response.created", "response": {**response, "output": []}}]
        for index, item in enumerate(items):
            events += [
                {"type": "response.output_item.added", "output_index": index, "item": item},
                {"type": "response.output_item.done", "output_index": index, "item": item},
            ]
        events.append({"type": "response.completed", "response": done})
        self._stream(*((event["type"], {**event, "sequence_number": n}) for n, event in enumerate(events)))

    def _as_chat(self, body: dict[str, Any], step: Step, _asked: Asked) -> None:
        message: dict[str, Any] = {"role": "assistant", "content": step.text or None}
        if step.tool:
            function = {"name": step.tool, "arguments": json.dumps(step.arguments)}
            message["tool_calls"] = [{"index": 0, "id": _name("call"), "type": "function", "function": function}]
        why = "tool_calls" if step.tool else "stop"
        usage = {"prompt_tokens": 100, "completion_tokens": _TOKENS_SAID, "total_tokens": 100 + _TOKENS_SAID}
        frame = {"id": _name("chat"), "created": 1, "model": body.get("model")}
        if not body.get("stream"):
            choice = {"index": 0, "message": message, "finish_reason": why}
            self._json({**frame, "object": "chat.completion", "choices": [choice], "usage": usage})
            return
        frame["object"] = "chat.completion.chunk"
        self._stream(
            (None, {**frame, "choices": [{"index": 0, "delta": message, "finish_reason": None}]}),
            (None, {**frame, "choices": [{"index": 0, "delta": {}, "finish_reason": why}]}),
            (None, {**frame, "choices": [], "usage": usage}),
            (None, "[DONE]"),
        )

    def _as_gemini(self, body: dict[str, Any], step: Step, _asked: Asked) -> None:
        wants_json = (body.get("generationConfig") or {}).get("responseMimeType") == "application/json"
        text = _BLAND_JSON if wants_json else step.text
        parts: list[dict[str, Any]] = [{"text": text}] if text else []  # an empty part makes the whole answer invalid
        if step.tool:
            parts.append({"functionCall": {"name": step.tool, "args": step.arguments}})
        answer = {
            "candidates": [{"content": {"role": "model", "parts": parts}, "finishReason": "STOP", "index": 0}],
            "usageMetadata": {"promptTokenCount": 100, "candidatesTokenCount": _TOKENS_SAID, "totalTokenCount": 120},
        }
        if ":streamGenerateContent" in self.path:
            self._stream((None, answer))
        else:
            self._json(answer)

    _formats: ClassVar[dict[str, tuple[Any, Any]]] = {
        "/messages": (_from_messages, _as_messages),
        "/responses": (_from_responses, _as_response),
        "/chat/completions": (_from_chat, _as_chat),
        ":generateContent": (_from_gemini, _as_gemini),
        ":streamGenerateContent": (_from_gemini, _as_gemini),
    }


class Server(ThreadingHTTPServer):
    """Listens on loopback, on a port of its own; a context manager."""

    daemon_threads = True

    def __init__(self, scenes: dict[str, list[Step]]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.scenes = scenes
        self.bodies: list[dict[str, Any]] = []
        """What was asked, as it came."""

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


def _name(kind: str) -> str:
    return f"{kind}_{uuid.uuid4().hex[:20]}"
