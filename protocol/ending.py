"""How a run can end: a closed set of reasons, and what a failure carries."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, ConfigDict

ErrorKind = Literal[
    "provider",
    "budget",
    "step_limit",
    "context_full",
    "runner_crash",
    "invalid_output",
    "empty_output",
    "queue_timeout",
    "deadline",
    "idle",
    "killed",
    "parent_stopped",
    "host_stopped",
    "host_lost",
    "ghost",
]


class EndReason(StrEnum):
    """Why a run is over. Closed: nothing ends in any other way."""

    COMPLETED = "completed"
    FAILED = "failed"
    KILLED = "killed"
    WATCHDOG_TIMEOUT = "watchdog_timeout"
    GHOST_SWEEP = "ghost_sweep"
    SWEPT = "swept"
    """Only of an ended event: retention removed the result. A run's own end never becomes this."""


class Failure(BaseModel):
    """What went wrong, for whoever decides what to do next."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: ErrorKind
    message: str
    retryable: bool = False
