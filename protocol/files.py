"""Files a sub-agent touched, as its tools reported them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

FileMode = Literal["read", "write", "edit"]
Provenance = Literal["read", "changed", "observed"]


@dataclass(frozen=True, slots=True)
class Receipt:
    """One path-taking tool call: which file, how, and whether it worked.

    ``observed``: the tool declares no paths, and this one was seen in its arguments.
    """

    path: str
    mode: FileMode
    ok: bool = True
    observed: bool = False

    @property
    def provenance(self) -> Provenance:
        """How the parent sees this touch."""
        if self.observed:
            return "observed"
        return "read" if self.mode == "read" else "changed"


class RecentFile(BaseModel):
    """A file in a result, in the order it was touched.

    ``observed`` means that it was seen in a tool's arguments rather than in a receipt.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str = Field(min_length=1)
    provenance: Provenance = "read"
