"""By whose leave something is said to a session: one question for every way in."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from understudy.actors.clock import within
from understudy.actors.errors import NotSentError, UnknownRunError
from understudy.persistence.operations import AppendTurns, OpenSession
from understudy.protocol.framing import frame
from understudy.protocol.model import Turn
from understudy.protocol.sending import Sending, allowed, capped

if TYPE_CHECKING:
    from understudy.actors.backstage import Backstage
    from understudy.actors.mind import Mind, Reply
    from understudy.actors.session import SessionActor
    from understudy.persistence import SessionRecord
    from understudy.protocol import FollowUp, SessionKey

logger = logging.getLogger("understudy")

MaySend: TypeAlias = Callable[[Sending], bool | None]
"""The host's own say: True and False decide, None leaves it to the rules."""


def admitted(backstage: Backstage, sender: SessionKey | None, target: SessionKey, message: str) -> str:
    """``message`` as it may go into ``target``, cut to size; raises NotSentError where the policy is against it."""
    decided = _asked(backstage.may_send, Sending(sender, target, message))
    if decided is None:
        decided = allowed(backstage.config.send_rules, target)
    if not decided:
        raise NotSentError(f"nothing may be sent to session {target}: the host's send policy is against it")
    return capped(message)


def is_sub_agent(backstage: Backstage, key: SessionKey) -> bool:
    """Whether a session is some run's; by what is recorded, not by the look of its key."""
    record = backstage.store.sessions.get(key)
    return record is not None and record.parent_session_key is not None


async def leave_message(session: SessionActor, message: FollowUp) -> str:
    """An ordinary message from one of the host's sessions to another, made if it is not there yet.

    It stands there framed, under its sender's name. A session with a model thinks about it at once; any other finds
    it in its history.
    """
    backstage, target = session.backstage, message.session_key
    record = backstage.store.sessions.get(target)
    # A sub-agent's way to others is its result; and another agent's session answers like one that is not there.
    if session.owner is not None or target == session.key or not _visible(session, record):
        raise UnknownRunError(f"session {target!r} is not one that you can send to")
    text = admitted(backstage, session.key, target, message.message)
    note = f"[Message from session {session.key}]\n{frame(text)}"
    there = backstage.sessions.get(target)
    if there is not None and there.mind is not None:
        return await _said_to(there.mind, note, message.wait, session)
    if record is not None and record.holder not in {None, backstage.host}:
        raise NotSentError(f"session {target} is open in another host: send it from there")
    place = session.place
    now = backstage.now()
    await backstage.store.transaction(
        OpenSession(target, at=now, agent_id=place.agent_id, visibility=place.visibility),
        AppendTurns(target, now, (Turn("user", note),)),
    )
    return f"The message is in session {target}, which will read it when it next thinks."


async def _said_to(mind: Mind, note: str, seconds: float, sender: SessionActor) -> str:
    answers: list[Reply] = []

    async def think() -> None:
        answers.append(await mind.prompt(note))

    async def thought() -> None:
        await asyncio.shield(thinking)  # it thinks on, also when nobody waits any more

    thinking = sender.backstage.task(think())
    if seconds:
        with contextlib.suppress(TimeoutError):
            await within(sender.backstage.clock, seconds, thought())
    if not answers:
        return "The session was told, and has not answered yet."
    return frame(answers[0].output) if answers[0].output else "The session was told, and had nothing to say."


def _visible(session: SessionActor, record: SessionRecord | None) -> bool:
    if record is None or record.agent_id == session.place.agent_id:
        return True
    return session.place.visibility == record.visibility == "shared"


def _asked(may_send: MaySend | None, sending: Sending) -> bool | None:
    if may_send is None:
        return None
    try:
        return may_send(sending)
    except Exception:
        # Whoever guards the door and falls over lets nobody in.
        logger.exception("the send policy of the host failed")
        return False
