"""Asking for a sub-agent: the request, what the child gets, and the two answers."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Annotated, Literal, Protocol, TypeAlias, runtime_checkable

from pydantic import (
    BaseModel,
    Field,
    InstanceOf,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    StringConstraints,
    WithJsonSchema,
)

from understudy.protocol._edge import EDGE, PrintableLine, PrintableText
from understudy.protocol.authority import Authority
from understudy.protocol.ids import Made, RunId, SessionKey

ParentHistory = Literal["none", "summary"]
Cleanup = Literal["delete", "keep"]
SpawnMode = Literal["wait", "background"]
RestartPolicy = Literal["fail", "resume"]
RejectionReason = Literal[
    "depth_exceeded",
    "not_allowed",
    "budget_exceeded",
    "children_exceeded",
    "queue_full",
    "duplicate_conflict",
    "undelivered_backlog",
    "store_unavailable",
]


@runtime_checkable
class ReplyTo(Protocol):
    """Anything with ``tell``: in practice a ``pykka.ActorRef`` of the host's own actor."""

    def tell(self, message: object) -> None:
        """Take a message without waiting."""


EnvName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
Env: TypeAlias = Mapping[EnvName, str]


class Budget(BaseModel):
    """The most a run, its whole subtree included, may consume."""

    model_config = EDGE

    tokens: PositiveInt | None = None
    cost_usd: PositiveFloat | None = None


class GraphNode(BaseModel):
    """Marks a spawn as a node of a graph the host schedules: it bypasses the children limit and no other."""

    model_config = EDGE

    graph_id: PrintableLine
    node_id: PrintableLine


class Spawn(BaseModel):
    """Ask a session for a sub-agent. What is left out comes from the session and the runtime's configuration.

    Example:
        >>> Spawn(task="Summarise how config is loaded", label="config").label
        'config'
    """

    model_config = EDGE

    type: Literal["spawn"] = "spawn"
    task: PrintableText
    label: PrintableLine | None = None
    runner: PrintableLine | None = Field(default=None, alias="agent")
    objective: PrintableText | None = None
    artifact_refs: tuple[PrintableLine, ...] = ()
    domain_knowledge: tuple[PrintableText, ...] = ()
    tool_groups: tuple[PrintableLine, ...] | None = None
    expected_outputs: tuple[PrintableLine, ...] = ()
    include_parent_history: ParentHistory | None = None
    inherit_context: bool | None = None
    cwd: PrintableLine | None = None
    env: Env = Field(default_factory=dict, repr=False)
    model: PrintableLine | None = None
    max_steps: PositiveInt | None = None
    timeout_ms: PositiveInt | None = None
    idle_timeout_ms: PositiveInt | None = None
    first_token_timeout_ms: PositiveInt | None = None
    budget: Budget | None = None
    cleanup: Cleanup = "delete"
    mode: SpawnMode = "background"
    announce: bool | None = None
    restart: RestartPolicy | None = None
    spec_id: PrintableLine | None = None
    graph: GraphNode | None = None
    idempotency_key: PrintableLine | None = None
    reply_to: Annotated[
        InstanceOf[ReplyTo] | None, Field(exclude=True, repr=False), WithJsonSchema({"type": "null"})
    ] = None

    def digest(self) -> str:
        """What this asks for, as a hash: the same key with another digest is another request."""
        asked = self.model_dump_json(exclude={"idempotency_key"}, exclude_defaults=True)
        return hashlib.sha256(asked.encode()).hexdigest()


class SpawnPacket(BaseModel):
    """What the child gets: the request with every default resolved, and what the parent hands down."""

    model_config = EDGE

    run_id: Annotated[RunId, Made]
    session_key: Annotated[SessionKey, Made]
    parent_session_key: Annotated[SessionKey, Made]
    parent_run_id: Annotated[RunId, Made] | None = None
    root_session_key: Annotated[SessionKey, Made]
    agent_id: PrintableLine = "default"
    depth: PositiveInt
    max_depth: PositiveInt
    task: PrintableText
    label: PrintableLine
    runner: PrintableLine
    objective: PrintableText | None = None
    artifact_refs: tuple[PrintableLine, ...] = ()
    domain_knowledge: tuple[PrintableText, ...] = ()
    tool_groups: tuple[PrintableLine, ...] | None = None
    authority: Authority | None = None
    expected_outputs: tuple[PrintableLine, ...] = ()
    parent_summary: PrintableText | None = None
    inherited_context: Annotated[str, Made] | None = None
    inherited_until: NonNegativeInt | None = None
    workspace_dir: PrintableLine
    cwd: PrintableLine
    env: Env = Field(default_factory=dict, repr=False)
    model: PrintableLine | None = None
    max_steps: PositiveInt
    deadline_at: PositiveInt | None = None
    timeout_ms: PositiveInt
    idle_timeout_ms: PositiveInt | None = None
    first_token_timeout_ms: PositiveInt | None = None
    budget: Budget | None = None
    cleanup: Cleanup = "delete"
    restart: RestartPolicy = "fail"
    spec_id: PrintableLine | None = None
    graph: GraphNode | None = None
    graph_shared_dir: PrintableLine | None = None

    @property
    def is_leaf(self) -> bool:
        """Whether this child may not spawn: it is the deepest that ``max_depth`` allows."""
        return self.depth + 1 >= self.max_depth


class Accepted(BaseModel):
    """The spawn is durable: whatever happens now, it will have exactly one result."""

    model_config = EDGE

    type: Literal["accepted"] = "accepted"
    run_id: RunId
    session_key: SessionKey
    queued: bool = False
    duplicate: bool = False


class Rejection(BaseModel):
    """The spawn was refused and left nothing behind. The message tells a model what to do next."""

    model_config = EDGE

    type: Literal["rejection"] = "rejection"
    reason: RejectionReason
    message: PrintableText
    current: int | float | str | None = None
    limit: int | float | str | tuple[str, ...] | None = None


class SpawnRejected(Exception):  # noqa: N818 - the name hosts write, fixed by the public API
    """Raised by the API where a spawn was refused; ``rejection`` holds the structured reason."""

    def __init__(self, rejection: Rejection) -> None:
        super().__init__(rejection.message)
        self.rejection = rejection

    def __reduce__(self) -> tuple[type[SpawnRejected], tuple[Rejection]]:
        return type(self), (self.rejection,)
