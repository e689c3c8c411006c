"""A typed function becomes a tool, and whatever a model sends it becomes an outcome."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from understudy.actors import SystemClock
from understudy.actors._kernel.pool import BlockingPool
from understudy.actors.tools import FILE_TOOLS, Toolbox, ToolContext, ToolError, ToolOutcome, tool
from understudy.actors.tools.outcome import MAX_CHARACTERS
from understudy.protocol import Receipt
from understudy.protocol.model import UNPARSED_ARGUMENTS

if TYPE_CHECKING:
    from collections.abc import Callable

    from understudy.actors.testing import ManualClock

    from .conftest import Call, Roots


class Filter(BaseModel):
    key: str
    values: list[int] = []


@tool(group="made-up", mode="edit", paths=("path",), timeout_ms=5000, approval=True)
def sample(
    path: str,
    json: Annotated[int, Field(ge=1, description="Called like a method of pydantic's.")],
    kind: Literal["a", "b"] = "a",
    chosen: Filter | None = None,
) -> str:
    """Do something.

    And explain it.
    """
    return f"{path} {json} {kind} {chosen}"


def test_the_schema_is_made_from_the_signature() -> None:
    """Golden: names, types, defaults, descriptions and constraints; nothing else."""
    assert sample.spec.name == "sample"
    assert sample.spec.description == "Do something.\n\nAnd explain it."
    assert sample.parameters == {
        "$defs": {
            "Filter": {
                "properties": {
                    "key": {"type": "string"},
                    "values": {"default": [], "items": {"type": "integer"}, "type": "array"},
                },
                "required": ["key"],
                "title": "Filter",
                "type": "object",
            }
        },
        "additionalProperties": False,
        "properties": {
            "chosen": {"anyOf": [{"$ref": "#/$defs/Filter"}, {"type": "null"}], "default": None},
            "json": {"description": "Called like a method of pydantic's.", "minimum": 1, "type": "integer"},
            "kind": {"default": "a", "enum": ["a", "b"], "type": "string"},
            "path": {"type": "string"},
        },
        "required": ["path", "json"],
        "type": "object",
    }
    assert (sample.group, sample.mode, sample.paths, sample.timeout_ms, sample.approval) == (
        "made-up", "edit", ("path",), 5000, True,
    )  # fmt: skip


def test_the_built_in_tools_have_the_names_and_arguments_a_model_knows() -> None:
    """Golden; a changed name changes every prompt and transcript."""
    seen = {
        spec.name: (tuple(spec.parameters["properties"]), tuple(spec.parameters.get("required", ())))  # type: ignore[arg-type]
        for spec in Toolbox(*FILE_TOOLS).specs()
    }
    assert seen == {
        "file_read": (("path", "offset", "limit"), ("path",)),
        "list": (("path", "depth"), ()),
        "file_write": (("path", "content"), ("path", "content")),
        "file_edit": (("path", "old_text", "new_text"), ("path", "old_text", "new_text")),
        "grep": (("pattern", "path", "glob", "ignore_case"), ("pattern",)),
    }


def test_without_parentheses_it_is_a_custom_tool_named_like_its_function() -> None:
    """And without any argument it has an empty schema."""

    @tool
    def now() -> str:
        """The time."""
        return "noon"

    assert (now.name, now.group, now.paths) == ("now", "custom", None)
    assert now.parameters == {"additionalProperties": False, "properties": {}, "type": "object"}


def undocumented() -> None: ...


def untyped(x) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
    """Something."""


def variadic(*words: str) -> None:
    """Something."""


def unresolvable(x: Nowhere) -> None:  # type: ignore[name-defined]  # noqa: F821
    """Something."""


def fine(x: int) -> None:
    """Something."""


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: tool(undocumented), "tool 'undocumented' has no docstring: the model learns"),
        (lambda: tool(untyped), "tool 'untyped': parameter 'x' needs a type"),
        (lambda: tool(variadic), r"tool 'variadic': \*words: 'str' cannot be described to a model"),
        (lambda: tool(unresolvable), "tool 'unresolvable': name 'Nowhere' is not defined: import"),
        (lambda: tool(name="with space")(fine), "tool name 'with space' is not allowed: use 1 to 64"),
        (lambda: tool(paths=("y",))(fine), "paths names 'y', which is not one of its arguments"),
        (lambda: tool(timeout_ms=0)(fine), "timeout_ms = 0 is not allowed: use 1 or more"),
    ],
)
def test_a_function_that_cannot_be_a_tool_is_refused_where_it_is_written(
    make: Callable[[], object], sentence: str
) -> None:
    """With the remedy, before any model sees it."""
    with pytest.raises(TypeError, match=sentence):
        make()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({}, "sample was not run: path: Field required; json: Field required"),
        ({"path": "a", "json": 0}, "sample was not run: json: Input should be greater than or equal to 1"),
        ({"path": 7, "json": 1}, "sample was not run: path: Input should be a valid string"),
        (
            {"pth": "a", "path": "a", "json": 1},
            "sample was not run: pth: Extra inputs are not permitted (did you mean 'path'?)",
        ),
        (
            {UNPARSED_ARGUMENTS: '{"path": '},
            "sample was not run: its arguments are not one JSON object; send an object with path, json, kind, chosen",
        ),
    ],
)
def test_bad_arguments_come_back_as_one_sentence(call: Call, arguments: dict[str, Any], sentence: str) -> None:
    """The tool does not run, and the model is told what to change."""
    assert call(sample, **arguments) == ToolOutcome(sentence, is_error=True)


def test_good_arguments_arrive_as_the_types_that_were_asked_for(call: Call) -> None:
    """A number in quotes is a number; a nested object is its model."""
    outcome = call(sample, path="x", json="3", chosen={"key": "k", "values": [1]})
    assert outcome.text == "x 3 a key='k' values=[1]"
    assert not outcome.is_error


def test_the_context_is_injected_and_not_in_the_schema(call: Call, roots: Roots) -> None:
    """Under whatever name; a model cannot send one."""

    @tool
    def where(here: ToolContext, word: str = "at") -> str:
        """Where we are."""
        return f"{word} {here.cwd}"

    assert where.parameters["properties"] == {"word": {"default": "at", "type": "string"}}
    assert call(where).text == f"at {roots.cwd}"
    assert call(where, here="x").is_error


def test_sync_functions_run_off_the_loop_and_async_ones_on_it(call: Call) -> None:
    """A blocking tool holds up nobody."""

    @tool(paths=())
    def blocking() -> bool:
        """Which thread."""
        return threading.current_thread() is threading.main_thread()

    @tool(paths=())
    async def cooperative() -> bool:
        """Which thread."""
        return threading.current_thread() is threading.main_thread()

    assert call(blocking).text == "false"
    assert call(cooperative).text == "true"


@dataclass
class Point:
    x: int


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as it is", "as it is"),
        (None, "null"),
        ({"a": [1, 2.5, None]}, '{"a":[1,2.5,null]}'),
        (Point(1), '{"x":1}'),
        (Filter(key="é"), '{"key":"é","values":[]}'),
        ("lone \ud800 surrogate", "lone \\ud800 surrogate"),
    ],
)
def test_what_is_not_text_becomes_json(call: Call, value: object, text: str) -> None:
    """Whatever pydantic can write; and what cannot be sent is spelled out."""

    @tool
    def give() -> object:
        """Give it."""
        return value

    assert call(give) == ToolOutcome(text)
    assert call(give).text == text


def test_a_result_that_cannot_be_written_is_an_error_and_not_a_memory_address(call: Call) -> None:
    """The developer sees it at the first call."""

    @tool
    def give() -> object:
        """Give it."""
        return object()

    assert call(give).text == "give ran, but returned a object, which cannot be written as JSON"


def test_a_flood_is_cut_with_the_exact_count(call: Call) -> None:
    """Both ends survive."""

    @tool
    def flood() -> str:
        """Say much."""
        return "<" + "x" * MAX_CHARACTERS + ">"

    text = call(flood).text
    assert text.startswith("<x")
    assert text.endswith("x>")
    assert len(text) <= MAX_CHARACTERS
    kept = text.count("x")
    assert f"\n[… {MAX_CHARACTERS - kept} characters omitted …]\n" in text
    assert ToolOutcome(text).text == text


@pytest.mark.parametrize(
    ("raised", "text"),
    [
        (ToolError("the printer is out of paper: use screen"), "the printer is out of paper: use screen"),
        (KeyError("k"), "fail failed: KeyError: 'k'"),
        (ValueError(), "fail failed: ValueError"),
        (ValueError("x" * 5000), "fail failed: ValueError: " + "x" * 1975),
    ],
)
def test_what_a_tool_raises_is_an_error_outcome_without_a_traceback(call: Call, raised: Exception, text: str) -> None:
    """Type and message, bounded; sync and async alike."""

    @tool(name="fail")
    def blocking() -> None:
        """Fail."""
        raise raised

    @tool(name="fail")
    async def cooperative() -> None:
        """Fail."""
        raise raised

    assert call(blocking) == call(cooperative) == ToolOutcome(text, is_error=True)


def test_a_tool_that_exits_does_not_take_the_host_along(call: Call) -> None:
    """SystemExit on the loop would end the process."""

    @tool
    async def leave() -> None:
        """Leave."""
        raise SystemExit(3)

    assert call(leave) == ToolOutcome("leave failed: SystemExit: 3", is_error=True)


def test_a_timeout_strikes_on_the_injected_clock(roots: Roots, stopped_clock: ManualClock) -> None:
    """Not a moment before; a blocking call is left behind, and counted."""

    async def main() -> list[ToolOutcome]:
        gate = stopped_clock.gate()

        @tool(timeout_ms=1000)
        async def cooperative() -> None:
            """Hang."""
            await gate

        @tool(timeout_ms=1000)
        def blocking() -> None:
            """Hang."""
            gate.wait()

        pool = BlockingPool(asyncio.get_running_loop(), stopped_clock, limit=2)
        context = ToolContext(str(roots.cwd), str(roots.workspace), stopped_clock, pool.run)
        calls = [asyncio.ensure_future(each.call({}, context)) for each in (cooperative, blocking)]
        await stopped_clock.advance_async(0.999)
        assert not any(each.done() for each in calls)
        await stopped_clock.advance_async(0.001)
        outcomes = await asyncio.gather(*calls)
        assert pool.abandoned_threads == 1
        gate.open()
        pool.close()
        return list(outcomes)

    assert asyncio.run(main()) == [
        ToolOutcome("cooperative was stopped: it did not finish within its 1000 ms", is_error=True),
        ToolOutcome("blocking was stopped: it did not finish within its 1000 ms", is_error=True),
    ]


def test_a_timeout_of_the_tools_own_is_its_own(call: Call) -> None:
    """Not mistaken for the clock's."""

    @tool(timeout_ms=60_000)
    async def patient() -> None:
        """Give up."""
        raise TimeoutError("the printer did not answer")

    assert call(patient).text == "patient failed: TimeoutError: the printer did not answer"


def test_cancellation_passes_through(roots: Roots) -> None:
    """A killed run's tool is not an error outcome."""

    async def main() -> None:
        started = asyncio.Event()

        @tool(timeout_ms=60_000)
        async def hang() -> None:
            """Hang."""
            started.set()
            await asyncio.Event().wait()

        async def refuse(_function: object) -> Any:
            raise AssertionError

        context = ToolContext(str(roots.cwd), str(roots.workspace), SystemClock(), refuse)
        running = asyncio.ensure_future(hang.call({}, context))
        await started.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(main())


class TestReceipts:
    def test_declared_paths_are_receipts_canonical_and_in_order(self, call: Call, roots: Roots) -> None:
        """Relative to cwd, through symlinks, once each; lists of paths count."""
        (roots.cwd / "link").symlink_to(roots.workspace)

        @tool(paths=("target", "sources"), mode="write")
        def build(sources: list[str], target: str) -> str:
            """Build."""
            return f"{target} from {sources}"

        outcome = call(build, sources=["a", "link/b", "./a", "out"], target="out")
        assert outcome.receipts == (
            Receipt(str(roots.cwd / "out"), "write"),
            Receipt(str(roots.cwd / "a"), "write"),
            Receipt(str(roots.workspace / "b"), "write"),
        )
        assert {receipt.provenance for receipt in outcome.receipts} == {"changed"}

    @pytest.mark.parametrize(
        ("arguments", "observed"),
        [
            ({"filename": "a", "file_path": "b", "mode": "c"}, "b"),
            ({"filename": "a"}, "a"),
            ({"filename": "https://example.org/a"}, None),
            ({"filename": "two\nlines"}, None),
            ({"filename": "  "}, None),
        ],
    )
    def test_a_tool_that_declares_nothing_is_observed(
        self, call: Call, roots: Roots, arguments: dict[str, Any], observed: str | None
    ) -> None:
        """The first well-known name among the arguments of this call, if it is a path at all."""

        @tool
        def undeclared(file_path: str = "", filename: str = "", mode: str = "") -> str:
            """Something."""
            return file_path + filename + mode

        expected = () if observed is None else (Receipt(str(roots.cwd / observed), "read", observed=True),)
        assert call(undeclared, **arguments).receipts == expected
        assert [receipt.provenance for receipt in expected] == ["observed"][: len(expected)]

    def test_a_tool_can_say_that_it_has_no_paths(self, call: Call) -> None:
        """Its argument may be called path and be something else."""

        @tool(paths=())
        def route(path: str) -> str:
            """An HTTP path."""
            return path

        assert call(route, path="/api").receipts == ()

    @pytest.mark.parametrize("result", [ToolOutcome("no", is_error=True), ToolError("no")])
    def test_a_failed_call_gives_no_receipt(self, call: Call, result: ToolOutcome | ToolError) -> None:
        """Whether it says so or raises."""

        @tool(paths=("path",))
        async def fail(path: str) -> ToolOutcome:
            """Fail."""
            if isinstance(result, ToolError):
                raise result
            return result

        assert call(fail, path="a") == ToolOutcome("no", is_error=True)
