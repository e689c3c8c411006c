"""Text as UTF-8 can hold it. A child may say anything, and what it said must not keep its run from ending."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import BaseModel


def storable(text: str) -> str:
    """``text`` with each lone surrogate, half of a cut pair or a byte that was no text, as a question mark."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def document(model: BaseModel) -> str:
    """``model`` as JSON."""
    try:
        return model.model_dump_json(exclude_none=True)
    except ValueError:
        # Pydantic refuses lone surrogates; they are rare, so only then the longer way is gone.
        return plain_document(model.model_dump(mode="json", exclude_none=True))


def plain_document(value: object) -> str:
    """A plain value as JSON; not escaped to ASCII, where a lone surrogate would survive to be read back."""
    return storable(json.dumps(value, ensure_ascii=False))
