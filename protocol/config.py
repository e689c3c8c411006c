"""Every setting of a runtime, its default and its range. Strict: what is not known here is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, ModelWrapValidatorHandler, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from understudy.protocol._edge import PrintableLine
from understudy.protocol._explain import nearest
from understudy.protocol.spawn import ParentHistory, RestartPolicy

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo
    from pydantic_core import ErrorDetails

CondensationStrategy = Literal["auto", "always", "never"]

SendRule = Annotated[str, Field(pattern=r"^(?:allow|deny) \S+$")]
"""``allow PREFIX`` or ``deny PREFIX`` of session keys; the longest prefix that fits decides."""
AtLeastOne = Annotated[int, Field(ge=1)]
Milliseconds = Annotated[int, Field(gt=0)]
Money = Annotated[float, Field(gt=0)]


class ConfigError(Exception):
    """Bad configuration: one sentence with the key, the value and what is allowed.

    Not a ValueError, because pydantic would fold one into its own many-lined report.
    """


class RuntimeConfig(BaseModel):
    """How a runtime behaves. Frozen; both ``max_spawn_depth`` and ``maxSpawnDepth`` are understood.

    Example:
        >>> RuntimeConfig(max_children_per_agent=20).max_children_per_agent
        20
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        populate_by_name=True,
        allow_inf_nan=False,
    )

    # How many, how deep, who.
    max_spawn_depth: Annotated[int, Field(ge=1, le=10)] = 3
    max_children_per_agent: AtLeastOne = 5
    max_queued_per_agent: Annotated[int, Field(ge=0)] = 0
    queue_timeout_ms: Milliseconds = 120_000
    allow_agents: tuple[PrintableLine, ...] | None = None
    max_total_children: AtLeastOne | None = None

    # What comes back, and for how long it is kept.
    max_result_tokens: Annotated[int, Field(ge=100, le=100_000)] = 4_000
    condensation_strategy: CondensationStrategy = "auto"
    result_retention_ms: Milliseconds = 86_400_000
    narrative_casting: bool = True
    result_tag_prefix: PrintableLine = "Subagent Result"

    # What a child knows.
    objective_reinforcement: bool = True
    include_parent_history: ParentHistory = "none"
    parent_summary_max_tokens: Annotated[int, Field(ge=100, le=100_000)] = 1_000
    inherit_context: bool = True
    tail_chars: Annotated[int, Field(ge=0, le=20_000)] = 3_000
    recent_files_max: Annotated[int, Field(ge=1, le=1_000)] = 10

    # How long it may take: the deadline is min(max_steps × per_step, max_run).
    max_run_timeout_ms: Milliseconds = 600_000
    per_step_timeout_ms: Milliseconds = 60_000
    max_steps: AtLeastOne = 50
    ghost_sweep_interval_ms: Milliseconds = 30_000
    ghost_grace_ms: Annotated[int, Field(ge=0)] = 120_000
    idle_timeout_ms: Milliseconds | None = None
    first_token_timeout_ms: Milliseconds | None = None

    # How results travel.
    announce_debounce_ms: Annotated[int, Field(ge=0)] = 2_000
    delivery_max_attempts: AtLeastOne = 5
    delivery_backoff_ms: Milliseconds = 1_000
    delivery_max_age_ms: Milliseconds = 3_600_000

    send_rules: tuple[SendRule, ...] = ()

    # What it may cost.
    run_token_budget: AtLeastOne | None = None
    run_cost_budget_usd: Money | None = None
    tree_token_budget: AtLeastOne | None = None
    tree_cost_budget_usd: Money | None = None

    # What happens when the host dies under a run.
    restart_policy: RestartPolicy = "fail"
    max_restarts: Annotated[int, Field(ge=0)] = 2
    restart_window_ms: Milliseconds = 120_000

    @classmethod
    def parse(cls, values: Mapping[str, object], *, source: str) -> Self:
        """The configuration in ``values``; an error names ``source``, so that a person knows what to mend."""
        try:
            return cls.model_validate(dict(values))
        except ConfigError as error:
            named = ConfigError(f"{source}: {error}")
            for note in getattr(error, "__notes__", ()):
                named.add_note(f"{source}: {note}")
            raise named from None

    @model_validator(mode="wrap")
    @classmethod
    def _in_one_sentence(cls, values: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if isinstance(values, Mapping):
            for name in cls.model_fields:
                if name != to_camel(name) and name in values and to_camel(name) in values:
                    raise ConfigError(f"{name!r} is given twice, also as {to_camel(name)!r}: keep one")
        try:
            return handler(values)
        except ValidationError as error:
            first, *others = (cls._sentence(problem) for problem in error.errors(include_url=False))
            failure = ConfigError(first)
            for other in others:
                failure.add_note(other)
            raise failure from None

    @classmethod
    def _sentence(cls, problem: ErrorDetails) -> str:
        key = str(problem["loc"][0]) if problem["loc"] else ""
        field = next((name for name in cls.model_fields if key in {name, to_camel(name)}), None)
        if field is None:
            return f"unknown key {key!r}{nearest(key, cls.model_fields)}"
        allowed = _allowed(cls.model_fields[field])
        return f"{field} = {problem['input']!r} is not allowed: use {allowed}"


def _allowed(field: FieldInfo) -> str:
    """The values a field takes, in words, read off its own annotation."""
    choices = [part for part in (field.annotation, *get_args(field.annotation)) if part is not type(None)]
    literals = get_args(field.annotation) if isinstance(field.default, str) else ()
    if literals and all(isinstance(value, str) for value in literals):
        return " or ".join(map(repr, literals))
    bounds = {name: bound for part in (field, *choices) for name, bound in _bounds(part)}
    kind = _kind(field)
    if "ge" in bounds and "le" in bounds:
        words = f"{kind} from {bounds['ge']} to {bounds['le']}"
    elif "ge" in bounds:
        words = f"{kind} of {bounds['ge']} or more"
    elif "gt" in bounds:
        words = f"{kind} above {bounds['gt']}"
    else:
        words = kind
    return f"{words}, or leave it out" if field.default is None else words


def _kind(field: FieldInfo) -> str:
    text = str(field.annotation)
    if "bool" in text:
        return "true or false"
    if "tuple" in text:
        rules = "allow|deny" in str(get_args(field.annotation))
        return "a list of rules like 'deny agent:atlas:'" if rules else "a list of names"
    if "float" in text:
        return "a number"
    return "a whole number" if "int" in text else "one line of text"


def _bounds(part: Any) -> list[tuple[str, float]]:
    """The limits in a field's metadata, or in that of an ``Annotated`` inside an optional."""
    found: list[tuple[str, float]] = []
    for item in [*getattr(part, "metadata", ()), *getattr(part, "__metadata__", ())]:
        for source in (item, *getattr(item, "metadata", ())):
            found += [(name, getattr(source, name)) for name in ("ge", "gt", "le") if hasattr(source, name)]
    return found
