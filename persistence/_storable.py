"""Text as UTF-8 can hold it. A child may say anything, and what it said must not keep its run from ending."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import BaseModel

# Any escape, so that a backslash that is itself escaped is not taken for the beginning of one.
_ESCAPE = re.compile(r"\\(u0000|.)")


def storable(text: str) -> str:
    """``text`` with each lone surrogate, half of a cut pair or a byte that was no text, as a question mark."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


NOT_STORED = "inherited_context"
"""The field of a packet that is read from the parent's turns again when it is needed: no row holds a copy of it."""

_LEFT_OUT = {NOT_STORED}


def document(model: BaseModel) -> str:
    """``model`` as JSON. NUL is replaced: SQLite would take it for the end of the text it extracts."""
    left_out = _LEFT_OUT if NOT_STORED in model.__dict__ else None
    try:
        written = model.model_dump_json(exclude_none=True, exclude=left_out)
    except ValueError:
        # Pydantic refuses lone surrogates; they are rare, so only then the longer way is gone.
        written = plain_document(model.model_dump(mode="json", exclude_none=True, exclude=left_out))
    if "\\u0000" in written:
        written = _ESCAPE.sub(lambda found: "\ufffd" if found[1] == "u0000" else found[0], written)
    return written


def plain_document(value: object) -> str:
    """A plain value as JSON; not escaped to ASCII, where a lone surrogate would survive to be read back."""
    return storable(json.dumps(value, ensure_ascii=False))
