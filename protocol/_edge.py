"""What all edge messages share: strict, frozen, speaking both spellings, and discreet in errors."""

from __future__ import annotations

import unicodedata
from typing import Annotated

from pydantic import AfterValidator, ConfigDict, StringConstraints
from pydantic.alias_generators import to_camel

EDGE = ConfigDict(
    frozen=True,
    extra="forbid",
    alias_generator=to_camel,
    populate_by_name=True,
    allow_inf_nan=False,
    # A payload may hold a secret, and its error goes to logs and dead letters.
    hide_input_in_errors=True,
)


def _one_line(text: str) -> str:
    """Refuse what could end the line: these values are printed inside tags, tables and paths."""
    # What is printable has none of them; only what is not is looked at letter by letter.
    if not text.isprintable() and any(unicodedata.category(c) in {"Cc", "Zl", "Zp"} for c in text):
        raise ValueError("must be one line without control characters")
    return text


PrintableText = Annotated[str, StringConstraints(min_length=1, pattern=r"\S")]
"""Text with at least one visible character."""

PrintableLine = Annotated[
    str, StringConstraints(min_length=1, max_length=4096, pattern=r"\S"), AfterValidator(_one_line)
]
"""One visible line, short enough for a path."""
