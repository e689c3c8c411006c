"""What is stored, as JSON documents: times are milliseconds since the epoch, what is not known is null."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from understudy.persistence import DeadLetterRecord, RunRecord, SearchHit, SessionRecord, StoredTurn, StoreView
    from understudy.protocol import Event

Document: TypeAlias = dict[str, Any]


def run_document(record: RunRecord) -> Document:
    """A run as the HTTP server shows it too. Of its packet, what was asked; never its environment."""
    facts, packet = record.facts, record.packet
    return {
        "run_id": record.run_id,
        "status": facts.status,
        "label": record.label,
        "task": packet.task,
        "runner": record.runner,
        "session_key": record.session_key,
        "parent_session_key": record.parent_session_key,
        "parent_run_id": record.parent_run_id,
        "root_session_key": record.root_session_key,
        "depth": record.depth,
        "generation": facts.generation,
        "accepted_at": facts.accepted_at,
        "queued_at": record.queued_at,
        "started_at": facts.started_at,
        "deadline_at": facts.deadline_at,
        "last_progress_at": facts.last_progress_at,
        "cancel_requested_at": facts.cancel_requested_at,
        "ended_at": facts.ended_at,
        "delivered_at": facts.delivered_at,
        "swept_at": facts.swept_at,
        "end_reason": None if facts.end_reason is None else str(facts.end_reason),
        "partial": facts.partial,
        "failure": None if facts.failure is None else facts.failure.model_dump(mode="json"),
        "is_follow_up": record.is_follow_up,
        "kept": packet.cleanup == "keep",
        "spec_id": record.spec_id,
        "steps": record.steps,
        "usage": record.usage.model_dump(mode="json"),
    }


def session_document(view: StoreView, record: SessionRecord) -> Document:
    """A session, without what is below it."""
    return {
        "session_key": record.session_key,
        "agent_id": record.agent_id,
        "visibility": record.visibility,
        "harness": record.harness,
        "title": record.title,
        "workspace_dir": record.workspace_dir,
        "created_at": record.created_at,
        "updated_at": record.updated_at,
        "completed_at": record.completed_at,
        "files": session_files(view, record.session_key),
    }


def session_files(view: StoreView, session_key: str) -> list[str]:
    """The files a session has in view, the most recent first."""
    context = view.sessions.working_context(session_key)
    return [] if context is None else list(context.recent_files)


def run_files(view: StoreView, record: RunRecord) -> list[Document]:
    """The files a run touched, in order: from its result, or while it has none from what was recorded."""
    result = view.runs.result(record.run_id)
    if result is not None:
        return [file.model_dump(mode="json") for file in result.recent_files]
    touched = {
        event.data["path"]: event.data.get("provenance")
        for event in view.runs.events(record.run_id)
        if "path" in event.data
    }
    return [{"path": path, "provenance": provenance} for path, provenance in touched.items()]


def turn_document(stored: StoredTurn) -> Document:
    """Something that was said."""
    turn = stored.turn
    return {
        "id": stored.id,
        "at": stored.at,
        "run_id": stored.run_id,
        "role": turn.role,
        "text": turn.text,
        "tool_calls": [
            {"id": call.id, "name": call.name, "arguments": dict(call.arguments)} for call in turn.tool_calls
        ],
        "tool_call_id": turn.tool_call_id,
    }


def letter_document(letter: DeadLetterRecord) -> Document:
    """A dead letter."""
    return {
        "id": letter.id,
        "at": letter.at,
        "session_key": letter.session_key,
        "run_id": letter.run_id,
        "reason": letter.reason,
        "payload": letter.payload,
        "replayed_at": letter.replayed_at,
    }


def hit_document(hit: SearchHit) -> Document:
    """Something that was found."""
    return {
        "rank": hit.rank,
        "session_key": hit.session_key,
        "turn_id": hit.turn_id,
        "at": hit.at,
        "role": hit.role,
        "excerpt": hit.excerpt,
    }


def event_document(event: Event) -> Document:
    """Something that happened."""
    return {
        "name": event.name,
        "at": event.at,
        "session_key": event.session_key,
        "run_id": event.run_id,
        "parent_run_id": event.parent_run_id,
        "depth": event.depth,
        "data": dict(event.data),
    }
