"""Bad payloads are refused with a reason, reported, and hurt nobody."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from _extent import so_far

from understudy.actors import MessageActor, Runtime
from understudy.protocol import InvalidMessageError, Message, Spawn
from understudy.protocol.messages import MESSAGE_TYPES

if TYPE_CHECKING:
    from collections.abc import Callable

VALID: dict[str, dict[str, Any]] = {
    "spawn": {"task": "read the files", "label": "reader", "max_steps": 3, "budget": {"tokens": 10}, "env": {"A": "b"}},
    "follow_up": {"session_key": "agent:a:main", "message": "more", "wait": 1.5},
    "steer": {"run_id": "r-1", "message": "only this"},
    "kill": {"run_id": "r-1", "reason": "enough"},
    "release": {"session_key": "agent:a:main"},
    "sub_agent_result": {
        "run_id": "r-1",
        "session_key": "agent:a:sub",
        "parent_session_key": "agent:a:main",
        "label": "reader",
        "end_reason": "completed",
        "output": "done",
    },
}
REQUIRED = {
    "spawn": ["task"],
    "follow_up": ["session_key", "message"],
    "steer": ["run_id", "message"],
    "kill": ["run_id"],
    "release": ["session_key"],
    "sub_agent_result": ["run_id", "session_key", "parent_session_key", "label", "end_reason"],
}
MANY = so_far(2_000, 10_000)
# No field takes any of these.
JUNK: list[Callable[[random.Random], Any]] = [
    lambda _: object(),
    lambda _: b"\xff\xfe",
    lambda _: "\ud800",
    lambda _: "",
    lambda _: " \n\t",
    lambda _: float("nan"),
    lambda _: -1,
    lambda r: [[r.random()]],
    lambda r: {"nested": {"deeper": [r.random()] * 3}},
    lambda _: {1, 2},
    lambda _: Ellipsis,
]


class HostileDict(dict[str, Any]):
    """A mapping that raises while it is read."""

    def __getitem__(self, key: str) -> Any:
        raise ZeroDivisionError(key)

    def items(self) -> Any:
        raise ZeroDivisionError

    def get(self, *_: Any) -> Any:
        raise ZeroDivisionError


def bad_payload(kind: str, chance: random.Random) -> Any:
    """A payload that is wrong by construction, in one of many ways."""
    payload: dict[Any, Any] = {"type": kind, **VALID[kind]}
    way = chance.randrange(7)
    if way == 0:
        del payload[chance.choice(REQUIRED[kind])]
    elif way == 1:
        payload[chance.choice(["tasks", "run", "", "__class__", "🙂", 7, "type "])] = chance.random()
    elif way == 2:
        payload["type"] = chance.choice(["", "Spawn", "accepted", None, 3, b"spawn", ["spawn"], kind + " "])
    elif way in {3, 4}:
        payload[chance.choice(REQUIRED[kind])] = chance.choice(JUNK)(chance)
    elif way == 5:
        return chance.choice(
            [None, 5, "spawn", b"spawn", [payload], (payload,), object(), Spawn, HostileDict(payload), {}, set()]
        )
    else:
        recursive = payload[chance.choice(REQUIRED[kind])] = []
        recursive.append(recursive)
    return payload


class Listener(MessageActor):
    def on_message(self, message: Message) -> str:
        return message.type


@pytest.mark.parametrize("kind", VALID)
def test_bad_payloads_give_only_a_validation_error_and_a_dead_letter(kind: str, runtime: Runtime) -> None:
    """Asked or told, each bad payload is refused with its reason; the actor answers the next good one."""
    chance = random.Random(f"bad {kind}")
    ref = runtime.start_actor(Listener)
    payloads = [bad_payload(kind, chance) for _ in range(MANY)]
    answers = []
    for number, payload in enumerate(payloads):
        if number % 2:
            answers.append(ref.ask(payload, block=False))
        else:
            ref.tell(payload)
    for answer in answers:
        with pytest.raises(InvalidMessageError):
            answer.get(timeout=60)
    assert ref.ask({"type": kind, **VALID[kind]}) == kind
    letters = runtime.dead_letters(limit=2 * MANY)
    assert len(letters) == MANY
    assert all(letter.reason and letter.payload.startswith("to Listener") for letter in letters)


def test_every_message_type_is_fuzzed() -> None:
    """A message type added later has to be added above."""
    assert {model.model_fields["type"].default for model in MESSAGE_TYPES} == VALID.keys()


def test_the_error_names_the_field_and_never_the_value(runtime: Runtime) -> None:
    """A payload may hold a secret, and its error goes to logs."""
    ref = runtime.start_actor(Listener)
    with pytest.raises(InvalidMessageError, match=r"^spawn\.max_steps: ") as caught:
        ref.ask({"type": "spawn", "task": "x", "max_steps": "hunter2"})
    assert "hunter2" not in str(caught.value)
