"""What an MCP tool answered, as a model can read it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from mcp_types import (
    AudioContent,
    BlobResourceContents,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

from understudy.actors.tools.outcome import ToolOutcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcp_types import CallToolResult, ContentBlock


def outcome_of(result: CallToolResult, without_secrets: Callable[[str], str]) -> ToolOutcome:
    """Texts joined, everything else described; `ToolOutcome` bounds it."""
    parts = [_told(block) for block in result.content]
    if not parts and result.structured_content is not None:
        parts = [json.dumps(result.structured_content, ensure_ascii=False)]
    return ToolOutcome(without_secrets("\n".join(parts)) or "[no output]", is_error=result.is_error)


def _told(block: ContentBlock) -> str:
    match block:
        case TextContent():
            return block.text
        case ImageContent() | AudioContent():
            return f"[{block.type} {block.mime_type}, {len(block.data) * 3 // 4} bytes: cannot be shown here]"
        case ResourceLink():
            return f"[resource {block.name}: {block.uri}]"
        case EmbeddedResource(resource=BlobResourceContents() as blob):
            return f"[resource {blob.uri}, {len(blob.blob) * 3 // 4} bytes: cannot be shown here]"
        case EmbeddedResource(resource=TextResourceContents() as text):
            return f"[resource {text.uri}]\n{text.text}"
    return "[content of a kind that is not known here]"
