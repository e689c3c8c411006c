"""What all edge messages share: strict, frozen, speaking both spellings, and discreet in errors."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, StringConstraints
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


PrintableText = Annotated[str, StringConstraints(min_length=1, pattern=r"\S")]
"""Text with at least one visible character."""

# These values are printed inside tags, tables and paths: nothing in them may end the line.
_IN_A_LINE = r"[^\p{Cc}\p{Zl}\p{Zp}]*"
PrintableLine = Annotated[
    str, StringConstraints(min_length=1, max_length=4096, pattern=rf"^{_IN_A_LINE}[^\s\p{{Cc}}]{_IN_A_LINE}$")
]
"""One visible line without control characters, short enough for a path."""
