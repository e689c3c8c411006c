"""A typed function as a tool: its signature is the schema, its docstring what the model reads."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints, overload

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError
from pydantic.json_schema import GenerateJsonSchema

from understudy.actors.clock import within
from understudy.actors.tools._receipts import paths_among, receipts_of
from understudy.actors.tools.context import ToolContext
from understudy.actors.tools.outcome import ToolError, ToolOutcome
from understudy.protocol._explain import explain, nearest
from understudy.protocol.model import UNPARSED_ARGUMENTS, JsonObject, ToolSpec

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from understudy.protocol.files import FileMode

R = TypeVar("R")

# Both wire formats demand this of a tool's name.
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")

# An error is read by a model and kept in its history: what does not fit here helps nobody.
_MAX_ERROR = 2_000

_JSON: TypeAdapter[Any] = TypeAdapter(Any)


class _Untitled(GenerateJsonSchema):
    """A schema without a title on every field: they repeat the names, and each costs tokens."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002 - pydantic's signature
        """Never."""
        return False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tool:
    """A function that a model can call. Made by `tool`, or by `foreign_tool` with a schema from elsewhere."""

    name: str
    description: str
    parameters: JsonObject
    """JSON schema of the arguments."""
    group: str
    """What a spawn names to give a child this tool."""
    paths: tuple[str, ...] | None
    """The arguments that are paths, or None when the tool does not say: then well-known names count."""
    mode: FileMode
    """What a call does to those paths."""
    timeout_ms: int | None
    approval: bool
    """Whether a person is asked before each call."""
    function: Callable[..., object]
    """The decorated function, for calling it without a model."""
    _arguments: type[BaseModel] | None
    """None when the schema is somebody else's: then the function takes all arguments as one mapping."""
    _context_name: str | None

    @property
    def spec(self) -> ToolSpec:
        """The tool as a model sees it."""
        return ToolSpec(self.name, self.description, self.parameters)

    async def call(self, arguments: JsonObject, context: ToolContext) -> ToolOutcome:
        """Run once. Whatever goes wrong is an outcome the model can act on; only cancellation passes through."""
        try:
            given = self._validated(arguments)
        except ToolError as error:
            return ToolOutcome(str(error), is_error=True)
        if self._context_name is not None:
            given[self._context_name] = context
        running = self._run(given, arguments, context)
        if self.timeout_ms is None:
            return await running
        try:
            return await within(context.clock, self.timeout_ms / 1000, running)
        except TimeoutError:  # the clock's: what the function raises has become an outcome inside
            message = f"{self.name} was stopped: it did not finish within its {self.timeout_ms} ms"
            return ToolOutcome(message, is_error=True)

    def _validated(self, arguments: JsonObject) -> dict[str, object]:
        if UNPARSED_ARGUMENTS in arguments:
            raise ToolError(
                f"{self.name} was not run: its arguments are not one JSON object; "
                f"send an object with {_listed(self._names())}"
            )
        if self._arguments is None:
            return {"arguments": arguments}
        try:
            valid = self._arguments.model_validate(dict(arguments))
        except ValidationError as error:
            unknown = [name for name in arguments if name not in self._names()]
            hint = nearest(unknown[0], self._names()) if unknown else ""
            raise ToolError(f"{self.name} was not run: {explain(error)}{hint}") from None
        return {name: getattr(valid, _field(name)) for name in self._names()}

    def _names(self) -> list[str]:
        if self._arguments is None:
            properties = self.parameters.get("properties")
            return list(properties) if isinstance(properties, dict) else []
        return [field.alias for field in self._arguments.model_fields.values() if field.alias is not None]

    async def _run(self, given: dict[str, object], arguments: JsonObject, context: ToolContext) -> ToolOutcome:
        named = paths_among(arguments, self.paths)

        def with_receipts(outcome: ToolOutcome) -> ToolOutcome:
            if not named or outcome.is_error or outcome.receipts:
                return outcome
            touched = receipts_of(named, mode=self.mode, observed=self.paths is None, cwd=context.cwd)
            return replace(outcome, receipts=touched)

        try:
            if inspect.iscoroutinefunction(self.function):
                outcome = self._outcome(await self.function(**given))
                return await context.blocking(lambda: with_receipts(outcome)) if named else outcome
            return await context.blocking(lambda: with_receipts(self._outcome(self.function(**given))))
        except ToolError as error:
            return ToolOutcome(str(error)[:_MAX_ERROR], is_error=True)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - SystemExit would leave the loop and take the host along
            text = f"{self.name} failed: {type(error).__name__}: {error}".removesuffix(": ")
            return ToolOutcome(text[:_MAX_ERROR], is_error=True)

    def _outcome(self, value: object) -> ToolOutcome:
        if isinstance(value, ToolOutcome):
            return value
        if isinstance(value, str):
            return ToolOutcome(value)
        try:
            return ToolOutcome(_JSON.dump_json(value).decode())
        except ValueError:  # pydantic's serialization error
            raise ToolError(
                f"{self.name} ran, but returned a {type(value).__name__}, which cannot be written as JSON"
            ) from None


@overload
def tool(function: Callable[..., R], /) -> Tool: ...


@overload
def tool(
    *,
    name: str | None = None,
    group: str = "custom",
    paths: tuple[str, ...] | None = None,
    mode: FileMode = "read",
    timeout_ms: int | None = None,
    approval: bool = False,
) -> Callable[[Callable[..., R]], Tool]: ...


def tool(
    function: Callable[..., R] | None = None,
    /,
    *,
    name: str | None = None,
    group: str = "custom",
    paths: tuple[str, ...] | None = None,
    mode: FileMode = "read",
    timeout_ms: int | None = None,
    approval: bool = False,
) -> Tool | Callable[[Callable[..., R]], Tool]:
    """Make a tool of a typed function, sync (run on a thread) or async (run on the loop).

    ``paths`` names the arguments that are files, so that the parent hears of them; ``()`` says there are none. Left
    out, the first of ``path``, ``file_path``, ``filename``, … that a call has counts as observed. ``approval`` asks a
    person before each call; ``timeout_ms`` stops one that takes longer.

    Example:
        >>> @tool(paths=("path",), group="files:read")
        ... def count_lines(path: str) -> int:
        ...     '''How many lines a text file has.'''
        ...     with open(path) as file:
        ...         return sum(1 for _ in file)
        >>> count_lines.spec.parameters["required"]
        ['path']
    """

    def make(function: Callable[..., R]) -> Tool:
        return _make(
            function,
            name=name or function.__name__,
            group=group,
            paths=paths,
            mode=mode,
            timeout_ms=timeout_ms,
            approval=approval,
        )

    return make if function is None else make(function)


def _make(
    function: Callable[..., object],
    *,
    name: str,
    group: str,
    paths: tuple[str, ...] | None,
    mode: FileMode,
    timeout_ms: int | None,
    approval: bool,
) -> Tool:
    if not _NAME.fullmatch(name):
        raise TypeError(f"tool name {name!r} is not allowed: use 1 to 64 letters, digits, _ or -")
    if timeout_ms is not None and timeout_ms <= 0:
        raise TypeError(f"tool {name!r}: timeout_ms = {timeout_ms} is not allowed: use 1 or more, or None for no limit")
    description = inspect.getdoc(function)
    if not description:
        raise TypeError(f"tool {name!r} has no docstring: the model learns from it what the tool does")
    arguments, context_name = _arguments_of(function, name)
    schema = arguments.model_json_schema(schema_generator=_Untitled)
    del schema["title"]
    missing = [path for path in paths or () if path not in schema.get("properties", {})]
    if missing:
        raise TypeError(f"tool {name!r}: paths names {missing[0]!r}, which is not one of its arguments")
    return Tool(
        name=name,
        description=description,
        parameters=schema,
        group=group,
        paths=paths,
        mode=mode,
        timeout_ms=timeout_ms,
        approval=approval,
        function=function,
        _arguments=arguments,
        _context_name=context_name,
    )


def foreign_tool(
    function: Callable[[JsonObject], Awaitable[ToolOutcome]],
    *,
    name: str,
    description: str,
    parameters: JsonObject,
    group: str,
    mode: FileMode = "read",
    timeout_ms: int | None = None,
) -> Tool:
    """A tool whose schema is given, not made from a signature; whoever runs ``function`` checks its arguments."""
    return Tool(
        name=name,
        description=description,
        parameters=parameters,
        group=group,
        paths=None,
        mode=mode,
        timeout_ms=timeout_ms,
        approval=False,
        function=function,
        _arguments=None,
        _context_name=None,
    )


def _arguments_of(function: Callable[..., object], name: str) -> tuple[type[BaseModel], str | None]:
    """The arguments as a strict model, and the parameter that takes the `ToolContext`."""
    # A module may import ToolContext for its type checker alone: the annotation means ours all the same.
    known: Mapping[str, object] = {"ToolContext": ToolContext, **getattr(function, "__globals__", {})}
    try:
        hints = get_type_hints(function, globalns=dict(known), include_extras=True)
    except NameError as error:
        raise TypeError(f"tool {name!r}: {error}: import the types of its annotations at run time") from None
    fields: dict[str, Any] = {}
    context_name = None
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY}:
            raise TypeError(f"tool {name!r}: {parameter} cannot be described to a model: use plain named parameters")
        if parameter.name not in hints:
            raise TypeError(f"tool {name!r}: parameter {parameter.name!r} needs a type: the schema is made from it")
        if hints[parameter.name] is ToolContext:
            context_name = parameter.name
            continue
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[_field(parameter.name)] = (hints[parameter.name], Field(default, alias=parameter.name))
    try:
        model = create_model(name, __config__=ConfigDict(extra="forbid", hide_input_in_errors=True), **fields)
    except (PydanticSchemaGenerationError, PydanticUserError) as error:
        raise TypeError(f"tool {name!r}: {str(error).splitlines()[0]}") from None
    return model, context_name


def _field(name: str) -> str:
    """Behind a prefix, so that an argument may be called ``json``, ``copy`` or ``model_name``."""
    return f"p_{name}"


def _listed(names: list[str]) -> str:
    return ", ".join(names) or "no members"
