"""What a host or a model may say to a session, and the one door by which it comes in."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias, get_args

from pydantic import BaseModel, Field, NonNegativeFloat, TypeAdapter, ValidationError

from understudy.protocol._edge import EDGE, PrintableText
from understudy.protocol._explain import explain
from understudy.protocol.ids import RunId, SessionKey
from understudy.protocol.result import SubAgentResult
from understudy.protocol.spawn import Spawn


class FollowUp(BaseModel):
    """Say something more to a kept sub-agent; ``wait`` seconds for the reply, 0 to have it delivered later."""

    model_config = EDGE

    type: Literal["follow_up"] = "follow_up"
    session_key: SessionKey
    message: PrintableText
    wait: NonNegativeFloat = 0.0
    announce: bool | None = None


class Steer(BaseModel):
    """Give a running sub-agent a new instruction."""

    model_config = EDGE

    type: Literal["steer"] = "steer"
    run_id: RunId
    message: PrintableText


class Kill(BaseModel):
    """End a run and everything below it."""

    model_config = EDGE

    type: Literal["kill"] = "kill"
    run_id: RunId
    reason: PrintableText = "killed on request"


class Release(BaseModel):
    """Let a kept sub-agent go."""

    model_config = EDGE

    type: Literal["release"] = "release"
    session_key: SessionKey


Message: TypeAlias = Spawn | FollowUp | Steer | Kill | Release | SubAgentResult
"""Everything a session understands."""

MESSAGE_TYPES: tuple[type[BaseModel], ...] = get_args(Message)

_PARSER: TypeAdapter[Message] = TypeAdapter(Annotated[Message, Field(discriminator="type")])


class InvalidMessageError(ValueError):
    """A payload that is no message. Its text says which field is wrong and what is allowed."""


def parse_message(payload: object) -> Message:
    """The message in ``payload``: a message object as it is, a mapping by its ``type``."""
    if isinstance(payload, MESSAGE_TYPES):
        return payload  # type: ignore[return-value]  # get_args loses the static types
    if not isinstance(payload, dict):
        known = ", ".join(kind.__name__ for kind in MESSAGE_TYPES)
        raise InvalidMessageError(f"{type(payload).__name__} is no message type: send {known}, or a dict of one")
    try:
        return _PARSER.validate_python(payload)
    except ValidationError as error:
        raise InvalidMessageError(explain(error)) from None
    except Exception as error:  # noqa: BLE001 - see below
        # A hostile mapping can raise from its own methods while pydantic reads it.
        raise InvalidMessageError(f"the payload cannot be read: {type(error).__name__}") from None
