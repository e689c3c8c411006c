"""OpenCode's event stream: a session's ``parentID``, and messages that come in pieces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from understudy.gateway.harness.sighting import Sighting, key, text_of
from understudy.protocol import Receipt
from understudy.protocol.model import Turn

if TYPE_CHECKING:
    from collections.abc import Mapping

    from understudy.protocol import SessionKey
    from understudy.protocol.files import FileMode

HARNESS: Final = "opencode"
_TOUCHING: Mapping[str, FileMode] = {"read": "read", "write": "write", "edit": "edit", "patch": "edit"}
# Messages under way at once; one that never ends is forgotten in the end.
_MOST_OPEN = 1_000


class OpenCodeEvents:
    """Reads the stream of one server, event by event; remembers what is not complete yet."""

    def __init__(self) -> None:
        self._parents: dict[str, str | None] = {}
        self._projects: dict[str, str | None] = {}
        self._messages: dict[str, dict[str, str]] = {}
        self._roles: dict[str, str] = {}

    def read(self, event: Mapping[str, object]) -> Sighting | None:
        """What an event tells; None for what is not complete, or concerns nobody here."""
        properties = event.get("properties")
        if not isinstance(properties, dict):
            return None
        kind = event.get("type")
        info, part = properties.get("info"), properties.get("part")
        if kind in {"session.created", "session.deleted"} and isinstance(info, dict):
            return self._session(info, over=kind == "session.deleted")
        if kind == "session.idle":
            return self._idle(text_of(properties, "sessionID"))
        if kind == "message.updated" and isinstance(info, dict):
            return self._message(info)
        if kind == "message.part.updated" and isinstance(part, dict):
            return self._part(part)
        return None

    def _session(self, info: Mapping[str, object], *, over: bool) -> Sighting | None:
        session = text_of(info, "id")
        if session is None:
            return None
        self._parents[session] = text_of(info, "parentID")
        self._projects[session] = text_of(info, "directory")
        return self._sighting(session, "closed" if over else "opened", title=text_of(info, "title"))

    def _idle(self, session: str | None) -> Sighting | None:
        """It has answered: a sub-agent has come to its end, until it is asked again."""
        if session is None or self._parents.get(session) is None:
            return None
        return self._sighting(session, "closed")

    def _message(self, info: Mapping[str, object]) -> Sighting | None:
        """A message whose last piece is there. A person's has no end of its own: it is whole when the answer begins."""
        session, message, role = (text_of(info, name) for name in ("sessionID", "id", "role"))
        if session is None or message is None or role not in {"user", "assistant"}:
            return None
        self._roles[message] = role
        while len(self._roles) > _MOST_OPEN:
            oldest = next(iter(self._roles))
            del self._roles[oldest]
            self._messages.pop(oldest, None)
        time = info.get("time")
        if role == "assistant" and not (isinstance(time, dict) and time.get("completed")):
            asked = text_of(info, "parentID")
            return None if asked is None else self._whole(session, asked)
        return self._whole(session, message) if role == "assistant" else None

    def _whole(self, session: str, message: str) -> Sighting | None:
        role, pieces = self._roles.pop(message, None), self._messages.pop(message, None)
        text = "\n".join((pieces or {}).values())
        if role is None or not text.strip():
            return None
        turn = Turn("user", text) if role == "user" else Turn("assistant", text)
        return self._sighting(session, "said" if role == "user" else "answered", said=turn)

    def _part(self, part: Mapping[str, object]) -> Sighting | None:
        session, message, kind = (text_of(part, name) for name in ("sessionID", "messageID", "type"))
        if session is None or message is None:
            return None
        if kind == "text" and not part.get("synthetic"):
            # Each update has the whole piece so far.
            self._messages.setdefault(message, {})[text_of(part, "id") or ""] = text_of(part, "text") or ""
            while len(self._messages) > _MOST_OPEN:
                del self._messages[next(iter(self._messages))]
            return None
        files = _files(part) if kind == "tool" else ()
        return self._sighting(session, "used", files=files) if files else None

    def _sighting(
        self,
        session: str,
        what: str,
        *,
        said: Turn | None = None,
        files: tuple[Receipt, ...] = (),
        title: str | None = None,
    ) -> Sighting:
        above = self._parents.get(session)
        return Sighting(
            harness=HARNESS,
            what=what,  # type: ignore[arg-type]  # one of the words above
            session=key(HARNESS, session),
            root=self._root(session),
            project=self._projects.get(session),
            said=said,
            parent=None if above is None else key(HARNESS, above),
            files=files,
            title=title,
        )

    def _root(self, session: str) -> SessionKey:
        seen = {session}
        while (above := self._parents.get(session)) is not None and above not in seen:
            seen.add(above)
            session = above
        return key(HARNESS, session)


def _files(part: Mapping[str, object]) -> tuple[Receipt, ...]:
    state = part.get("state")
    mode = _TOUCHING.get(text_of(part, "tool") or "")
    if mode is None or not isinstance(state, dict) or state.get("status") != "completed":
        return ()
    given = state.get("input")
    path = text_of(given, "filePath") if isinstance(given, dict) else None
    return () if path is None else (Receipt(path, mode),)
