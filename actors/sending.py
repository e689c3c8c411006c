"""By whose leave something is said to a session: one question for every way in."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from understudy.actors.errors import NotSentError
from understudy.protocol.sending import Sending, allowed, capped

if TYPE_CHECKING:
    from understudy.actors.backstage import Backstage
    from understudy.protocol import SessionKey

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


def _asked(may_send: MaySend | None, sending: Sending) -> bool | None:
    if may_send is None:
        return None
    try:
        return may_send(sending)
    except Exception:
        # Whoever guards the door and falls over lets nobody in.
        logger.exception("the send policy of the host failed")
        return False
