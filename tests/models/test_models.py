"""Both SDKs over real HTTP: what goes over the wire, what comes back, and what is left behind."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
import traceback
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import pytest

from understudy.actors.models import AnthropicModel, MissingExtraError, OpenAIModel, Price, ProviderError, _room
from understudy.protocol import Usage
from understudy.protocol.model import (
    UNPARSED_ARGUMENTS,
    ModelRequest,
    TextDelta,
    ToolCall,
    ToolSpec,
    Truncated,
    Turn,
    UsageReport,
)

from .server import Asked, Broken, Fail, ModelServer, Say, Silence

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from understudy.actors.models._provider import ProviderModel
    from understudy.protocol.model import ModelEvent

    from .server import Answer

KEY = "sk-test-0123456789abcdefghij"
HELLO = ModelRequest((Turn("user", "hello"),))
PRICES = {"m": Price(3.0, 15.0), "cheap": Price(3.0, 15.0, cache_read_per_million=0.3)}


def openai_model(server: ModelServer, **options: Any) -> OpenAIModel:
    return OpenAIModel("m", api_key=KEY, base_url=server.openai_url, prices=PRICES, **options)


def anthropic_model(server: ModelServer, **options: Any) -> AnthropicModel:
    return AnthropicModel("m", api_key=KEY, base_url=server.anthropic_url, prices=PRICES, **options)


both = pytest.mark.parametrize("make", [openai_model, anthropic_model], ids=["openai", "anthropic"])


def play(
    make: Callable[..., ProviderModel],
    script: Sequence[Answer],
    test: Callable[[ProviderModel, ModelServer], Awaitable[Any]],
    **options: Any,
) -> Any:
    async def main() -> Any:
        async with ModelServer(script) as server:
            model = make(server, **options)
            try:
                return await test(model, server)
            finally:
                await model.close()

    return asyncio.run(asyncio.wait_for(main(), 60))


def answer(
    make: Callable[..., ProviderModel], script: Answer, request: ModelRequest = HELLO, **options: Any
) -> tuple[list[ModelEvent], ProviderError | None, list[Asked]]:
    """The events of one call, how it failed, and what was asked."""

    async def test(model: ProviderModel, server: ModelServer) -> Any:
        events = []
        try:
            async for event in model.complete(request):
                events.append(event)  # noqa: PERF401 - kept when it fails
        except ProviderError as error:
            return events, error, server.asked
        return events, None, server.asked

    outcome: tuple[list[ModelEvent], ProviderError | None, list[Asked]] = play(make, [script], test, **options)
    return outcome


@both
def test_text_comes_as_it_is_said_then_tool_calls_whole_then_usage(make: Callable[..., ProviderModel]) -> None:
    """Arguments are put together from their pieces; cached tokens count as input; money by the host's price."""
    script = Say(["Hel", "lo é"], [("t1", "file_read", ['{"path"', ': "a"}']), ("t2", "now", [])])
    events, error, _ = answer(make, script)
    assert error is None
    assert events == [
        TextDelta("Hel"),
        TextDelta("lo é"),
        ToolCall("t1", "file_read", {"path": "a"}),
        ToolCall("t2", "now", {}),
        UsageReport(Usage(input_tokens=100, output_tokens=20, cost_usd=0.0006)),
    ]


@both
def test_cached_tokens_have_their_own_price_where_the_host_gives_one(make: Callable[..., ProviderModel]) -> None:
    """By the model of the request; a model without a price costs nothing."""
    expected = {"cheap": (60 * 3 + 40 * 0.3 + 20 * 15) / 1e6, "unknown": 0.0}
    for name, cost in expected.items():
        events, _, asked = answer(make, Say(["x"]), ModelRequest(HELLO.turns, model=name))
        assert asked[0].body["model"] == name
        assert events[-1] == UsageReport(Usage(input_tokens=100, output_tokens=20, cost_usd=cost))


HISTORY = ModelRequest(
    (
        Turn("system", "Be brief."),
        Turn("user", "One"),
        Turn("user", "Two"),
        Turn("assistant", "Reading.", (ToolCall("t1", "file_read", {"path": "é"}), ToolCall("t2", "now"))),
        Turn("tool", "content", tool_call_id="t1"),
        Turn("tool", "noon", tool_call_id="t2"),
        Turn("system", "Be kind."),
        Turn("user", "Go on"),
        Turn("assistant", "", (ToolCall("t3", "now", {UNPARSED_ARGUMENTS: "{"}),)),
        Turn("tool", "not JSON", tool_call_id="t3"),
    ),
    (ToolSpec("now", "The time.", {"type": "object", "properties": {}}),),
)


def test_a_history_in_openais_words() -> None:
    """Golden: every turn a message; system where it stands."""
    _, _, (asked,) = answer(openai_model, Say(["x"]), HISTORY, options={"temperature": 0})
    assert asked.path == "/v1/chat/completions"
    assert asked.headers["authorization"] == f"Bearer {KEY}"
    assert asked.body == {
        "model": "m",
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0,
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "One"},
            {"role": "user", "content": "Two"},
            {
                "role": "assistant",
                "content": "Reading.",
                "tool_calls": [
                    {"id": "t1", "type": "function", "function": {"name": "file_read", "arguments": '{"path": "é"}'}},
                    {"id": "t2", "type": "function", "function": {"name": "now", "arguments": "{}"}},
                ],
            },
            {"role": "tool", "tool_call_id": "t1", "content": "content"},
            {"role": "tool", "tool_call_id": "t2", "content": "noon"},
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": "Go on"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {
                        "id": "t3",
                        "type": "function",
                        "function": {"name": "now", "arguments": '{"__unparsed_arguments__": "{"}'},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": "t3", "content": "not JSON"},
        ],
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "now",
                    "description": "The time.",
                    "parameters": {"type": "object", "properties": {}},
                },
            }
        ],
    }


def test_a_history_in_anthropics_words() -> None:
    """Golden: system apart, roles in turn, neighbours merged, tool results in the user's message and first in it."""
    _, _, (asked,) = answer(anthropic_model, Say(["x"]), HISTORY, max_tokens=77)
    assert asked.path == "/v1/messages"
    # Which header is the SDK's own business: its second major version moved the key.
    assert KEY in asked.headers.get("x-api-key", "") + asked.headers.get("authorization", "")
    assert asked.body == {
        "model": "m",
        "max_tokens": 77,
        "stream": True,
        "system": "Be brief.\n\nBe kind.",
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "One"}, {"type": "text", "text": "Two"}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "Reading."},
                    {"type": "tool_use", "id": "t1", "name": "file_read", "input": {"path": "é"}},
                    {"type": "tool_use", "id": "t2", "name": "now", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "t1", "content": "content"},
                    {"type": "tool_result", "tool_use_id": "t2", "content": "noon"},
                    {"type": "text", "text": "Go on"},
                ],
            },
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "t3", "name": "now", "input": {UNPARSED_ARGUMENTS: "{"}}],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t3", "content": "not JSON"}]},
        ],
        "tools": [{"name": "now", "description": "The time.", "input_schema": {"type": "object", "properties": {}}}],
    }


def test_blank_turns_and_late_tool_results_are_put_right_for_anthropic() -> None:
    """Blank text is refused there, and results must come before what the user says."""
    request = ModelRequest(
        (
            Turn("user", "  "),
            Turn("user", "hi"),
            Turn("assistant", " \n", (ToolCall("t", "now"),)),
            Turn("user", "meanwhile"),
            Turn("tool", "noon", tool_call_id="t"),
        )
    )
    _, _, (asked,) = answer(anthropic_model, Say(["x"]), request)
    assert "system" not in asked.body
    assert "tools" not in asked.body
    assert [[block["type"] for block in message["content"]] for message in asked.body["messages"]] == [
        ["text"],
        ["tool_use"],
        ["tool_result", "text"],
    ]


@both
@pytest.mark.parametrize("written", ['{"path": ', "[1]", '"text"', "null"])
def test_arguments_that_are_no_json_object_stay_a_call_the_loop_can_answer(
    make: Callable[..., ProviderModel], written: str
) -> None:
    """With what the model wrote."""
    events, error, _ = answer(make, Say(calls=[("t", "now", [written])]))
    assert error is None
    assert events[0] == ToolCall("t", "now", {UNPARSED_ARGUMENTS: written})


@both
def test_endless_arguments_are_kept_in_bounded_memory(
    make: Callable[..., ProviderModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is given up, even if what was kept of them would parse; what it has cost is told."""
    monkeypatch.setattr(_room, "LONGEST_ANSWER", 5_000)
    events, error, _ = answer(make, Say(calls=[("t", "now", ['{"a": 1}  ', "  " * 500])]))
    assert error is not None
    assert (error.kind, error.retryable) == ("runaway", False)
    assert not [event for event in events if isinstance(event, ToolCall)]


@both
def test_an_answer_cut_off_by_a_limit_says_so(make: Callable[..., ProviderModel]) -> None:
    """Half a sentence is not a final answer."""
    events, error, _ = answer(make, Say(["Half a sen"], stop="length"))
    assert error is None
    assert events[:2] == [TextDelta("Half a sen"), Truncated()]


def test_whole_calls_under_one_index_are_several_calls() -> None:
    """As some compatible servers send them; and a call without an id gets one."""
    from understudy.actors.models.openai import _Calls  # noqa: PLC0415

    class Piece:
        def __init__(self, index: int | None, call_id: str | None, name: str, arguments: str) -> None:
            self.index, self.id = index, call_id
            self.function = type("Function", (), {"name": name, "arguments": arguments})

    calls = _Calls(_room.Room("openai"))
    for piece in (
        Piece(0, "a", "x", '{"n": 1}'),
        Piece(0, "b", "y", "{}"),
        Piece(None, None, "", ""),
        Piece(7, None, "z", ""),
    ):
        calls.add(piece)
    assert [call.call() for call in calls.whole()] == [
        ToolCall("a", "x", {"n": 1}),
        ToolCall("b", "y", {}),
        ToolCall("call_3", "z", {}),
    ]


@both
@pytest.mark.parametrize("how", ["aclose", "cancel"])
def test_giving_an_answer_up_closes_its_connection(make: Callable[..., ProviderModel], how: str) -> None:
    """The server sees the client leave: nobody pays for words that nobody reads."""

    async def test(model: ProviderModel, server: ModelServer) -> None:
        said = asyncio.Event()

        async def read() -> None:
            async with aclosing(model.complete(HELLO)) as events:
                async for event in events:
                    assert event == TextDelta("first")
                    said.set()
                    if how == "aclose":
                        break

        reading = asyncio.ensure_future(read())
        await said.wait()
        if how == "cancel":
            await server.reached.wait()
            reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        assert reading.cancelled() == (how == "cancel")
        await asyncio.wait_for(server.disconnected.wait(), 30)

    play(make, [Broken("hang", ["first"])], test)


@both
def test_a_call_cancelled_before_the_first_word_closes_its_connection(make: Callable[..., ProviderModel]) -> None:
    """Also while the server has said nothing at all."""

    async def test(model: ProviderModel, server: ModelServer) -> None:
        events = model.complete(HELLO)
        reading = asyncio.ensure_future(anext(events))
        await server.reached.wait()
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        assert reading.cancelled()
        await asyncio.wait_for(server.disconnected.wait(), 30)

    play(make, [Silence()], test)


FAILURES: list[tuple[Fail, str, bool, int | None]] = [
    (Fail(429, headers={"retry-after": "7"}), "rate_limit", True, 7000),
    (Fail(429, headers={"retry-after-ms": "1500.2", "retry-after": "9"}), "rate_limit", True, 1501),
    (
        Fail(429, headers={"retry-after": "Thu, 01 Jan 2026 00:01:00 GMT", "date": "Thu, 01 Jan 2026 00:00:00 GMT"}),
        "rate_limit", True, 60_000,
    ),
    (Fail(429, headers={"retry-after": "soon"}), "rate_limit", True, None),
    (Fail(429, headers={"retry-after": "inf"}), "rate_limit", True, None),
    (Fail(429, headers={"retry-after": "-5"}), "rate_limit", True, 0),
    (Fail(429, {"error": {"message": "pay", "code": "insufficient_quota"}}), "quota", False, None),
    (Fail(529, {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}), "overloaded", True, None),
    (Fail(503), "overloaded", True, None),
    (Fail(500), "server", True, None),
    (Fail(500, headers={"x-should-retry": "false"}), "server", False, None),
    (Fail(502, "<html>" + "x" * 5000 + "</html>"), "server", True, None),
    (Fail(408), "timeout", True, None),
    (Fail(401), "auth", False, None),
    (Fail(403), "auth", False, None),
    (Fail(404), "not_found", False, None),
    (Fail(400), "bad_request", False, None),
    (Fail(422), "bad_request", False, None),
    (Fail(413), "context_full", False, None),
    (Fail(400, {"error": {"message": "no", "code": "context_length_exceeded"}}), "context_full", False, None),
    (
        Fail(400, {"error": {"type": "invalid_request_error", "message": "prompt is too long: 210000 tokens"}}),
        "context_full", False, None,
    ),
]  # fmt: skip


@both
@pytest.mark.parametrize(("script", "kind", "retryable", "retry_after_ms"), FAILURES)
def test_every_refusal_has_its_kind(
    make: Callable[..., ProviderModel],
    script: Fail,
    kind: str,
    retryable: bool,
    retry_after_ms: int | None,
) -> None:
    """Asked once: the SDK retries nothing by itself. The message is short, whatever the body was."""
    events, error, asked = answer(make, script)
    assert error is not None
    assert (error.kind, error.retryable, error.retry_after_ms) == (kind, retryable, retry_after_ms)
    assert str(error).startswith(f"{make.__name__.partition('_')[0]}: {kind} (HTTP {script.status}): ")
    assert len(str(error)) < 600
    assert events == []
    assert len(asked) == 1


@both
@pytest.mark.parametrize(
    ("script", "kind"),
    [
        (Broken("drop", ["a"]), "connection"),
        (Broken("end", ["a"]), "connection"),
        (Broken("garbage", ["a"]), "malformed"),
        (Broken("error", ["a"], {"type": "overloaded_error", "message": "busy"}), "overloaded"),
        (Broken("error", ["a"], {"type": "never_heard_of", "message": "hm"}), "server"),
    ],
)
def test_an_answer_that_breaks_off_is_an_error_and_never_the_end(
    make: Callable[..., ProviderModel], script: Broken, kind: str
) -> None:
    """Dropped, ended without an end, garbled, or taken back: what was said was said, and what was used is told."""
    events, error, _ = answer(make, script)
    assert error is not None
    assert (error.kind, error.retryable) == (kind, True)
    assert events[0] == TextDelta("a")
    assert all(isinstance(event, UsageReport) for event in events[1:])
    if make is anthropic_model:  # it says at the beginning what the question cost
        assert events[1:] == [UsageReport(Usage(input_tokens=100, output_tokens=1, cost_usd=0.000315))]


@both
def test_an_answer_of_another_shape_is_malformed(make: Callable[..., ProviderModel]) -> None:
    """JSON, but not what was agreed; not an AttributeError of ours."""
    from . import server as scripted  # noqa: PLC0415

    wrong = b'event: message_start\ndata: {"type": "message_start", "choices": 5}\n\n'
    with pytest.MonkeyPatch.context() as patch:
        for dialect in ("_openai", "_anthropic"):
            patch.setattr(scripted, dialect, lambda _answer: iter([("begin", wrong)]))
        _, error, _ = answer(make, Say())
    assert error is not None
    assert error.kind == "malformed"


@both
def test_silence_and_a_closed_port_have_their_kinds(make: Callable[..., ProviderModel]) -> None:
    """A read timeout as the net under the runtime's own limits; a server that is not there."""
    _, error, _ = answer(make, Silence(), read_timeout=0.05)
    assert error is not None
    assert (error.kind, error.retryable) == ("timeout", True)

    async def test(model: ProviderModel, server: ModelServer) -> None:
        await server.__aexit__(None, None, None)
        with pytest.raises(ProviderError) as refused:
            await anext(model.complete(HELLO))
        assert (refused.value.kind, refused.value.retryable) == ("connection", True)

    play(make, [], test)


@both
def test_a_mistake_of_the_host_is_not_taken_for_the_providers(make: Callable[..., ProviderModel]) -> None:
    """An option that does not exist is a TypeError, at once and unretried."""

    async def test(model: ProviderModel, _server: ModelServer) -> None:
        with pytest.raises(TypeError, match="temprature"):
            await anext(model.complete(HELLO))

    play(make, [], test, options={"temprature": 0})


@both
def test_no_key_is_in_any_error_or_repr(make: Callable[..., ProviderModel]) -> None:
    """Not even when the provider repeats it, nor in what hangs on the error."""
    message = f"Incorrect API key provided: {KEY}. Also Bearer {KEY}."
    _, error, _ = answer(make, Fail(401, {"error": {"message": message, "code": "invalid_api_key"}}))
    assert error is not None
    assert KEY not in "".join(traceback.format_exception(error))
    assert "[redacted]" in str(error)
    assert error.__context__ is None
    assert error.__cause__ is None
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - as it comes back from a worker process
    assert (str(copy), copy.kind, copy.retryable) == (str(error), "auth", False)

    async def test(model: ProviderModel, server: ModelServer) -> None:
        assert KEY not in repr(model)
        assert str(server._port) in repr(model)

    play(make, [], test)
    assert "pass" not in repr(OpenAIModel("m", api_key=KEY, base_url="http://user:pass@host:1/v1?key=pass"))


@both
def test_a_large_answer_streams_through(make: Callable[..., ProviderModel]) -> None:
    """Nothing is collected on the way: pieces go out as they come in."""

    async def test(model: ProviderModel, _server: ModelServer) -> int:
        size = 0
        async for event in model.complete(HELLO):
            if isinstance(event, TextDelta):
                size += len(event.text)
        return size

    assert play(make, [Say(["x" * 100_000] * 20)], test) == 2_000_000


@both
def test_one_model_serves_several_event_loops(make: Callable[..., ProviderModel]) -> None:
    """One after the other: connections belong to a loop, and each loop has its own."""
    models = []

    async def test(model: ProviderModel, server: ModelServer) -> None:
        models.append(model)
        first = models[0]
        first._settings["base_url"] = server.openai_url if make is openai_model else server.anthropic_url
        assert TextDelta("x") in [event async for event in first.complete(HELLO)]
        await first.close()

    play(make, [Say(["x"])], test)
    play(make, [Say(["x"])], test)


@pytest.mark.parametrize(
    ("model", "variable"), [(OpenAIModel, "OPENAI_API_KEY"), (AnthropicModel, "ANTHROPIC_API_KEY")]
)
def test_a_key_is_asked_for_when_the_model_is_made(
    monkeypatch: pytest.MonkeyPatch, model: Callable[..., object], variable: str
) -> None:
    """An endpoint of one's own may need none."""
    with pytest.raises(ValueError, match=f"Model needs a key: pass api_key or set {variable}"):
        model("m")
    assert repr(model("m", base_url="http://127.0.0.1:1/v1")).endswith("('m', base_url='http://127.0.0.1:1/v1')")
    monkeypatch.setenv(variable, KEY)
    assert KEY not in repr(model("m"))


@both
def test_what_the_environment_holds_is_not_sent_to_an_address_of_ones_own(
    make: Callable[..., ProviderModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither its keys nor its tokens: an endpoint is told only what the host says."""
    for variable in ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.setenv(variable, "sk-environment-0123456789")

    async def test(_model: ProviderModel, server: ModelServer) -> list[Asked]:
        url = server.openai_url if make is openai_model else server.anthropic_url
        model = (OpenAIModel if make is openai_model else AnthropicModel)("m", base_url=url)
        assert [event async for event in model.complete(HELLO)]
        await model.close()
        return server.asked

    (asked,) = play(make, [Say(["x"])], test)
    assert "environment" not in str(asked.headers)


@pytest.mark.parametrize(("model", "extra"), [(OpenAIModel, "openai"), (AnthropicModel, "anthropic")])
def test_without_the_sdk_the_sentence_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, model: Callable[..., object], extra: str
) -> None:
    """When the model is made, not when the package is imported."""
    monkeypatch.setitem(sys.modules, extra, None)
    with pytest.raises(MissingExtraError, match=rf"pip install 'understudy\[{extra}\]'"):
        model("m", api_key=KEY)


def test_importing_the_models_imports_no_sdk() -> None:
    """Nor does importing the actors."""
    program = (
        "import sys, understudy.actors, understudy.actors.models, understudy.actors.tools\n"
        "print({'openai', 'anthropic', 'httpx', 'httpx2'} & set(sys.modules))"
    )
    seen = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert seen.stdout == "set()\n"
