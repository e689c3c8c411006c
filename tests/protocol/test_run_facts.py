"""Facts add up to one status; impossible ones are refused."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from understudy.protocol import EndReason, Failure, IllegalFactsError, RunFacts, RunId

RUN = RunId("r-1")
FAILURE = Failure(kind="killed", message="enough")


@pytest.mark.parametrize(
    ("facts", "status"),
    [
        ({}, "pending"),
        ({"started_at": 2}, "running"),
        ({"started_at": 2, "last_progress_at": 3, "cancel_requested_at": 3}, "running"),
        ({"started_at": 2, "ended_at": 3, "end_reason": EndReason.COMPLETED}, "completed"),
        ({"started_at": 2, "ended_at": 3, "end_reason": EndReason.KILLED, "failure": FAILURE}, "failed"),
        ({"ended_at": 3, "end_reason": EndReason.FAILED, "failure": FAILURE, "delivered_at": 4}, "failed"),
    ],
)
def test_status_follows_from_the_facts(facts: dict[str, Any], status: str) -> None:
    """It is computed, never stored."""
    assert RunFacts(run_id=RUN, accepted_at=1, **facts).status == status


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"ended_at": 3}, "must be set together"),
        ({"end_reason": EndReason.COMPLETED}, "must be set together"),
        ({"ended_at": 3, "end_reason": EndReason.SWEPT, "failure": FAILURE}, "a run cannot end by it"),
        ({"ended_at": 3, "end_reason": EndReason.COMPLETED}, "completed without having started"),
        ({"started_at": 2, "ended_at": 3, "end_reason": EndReason.COMPLETED, "partial": True}, "completed, yet"),
        ({"started_at": 2, "ended_at": 3, "end_reason": EndReason.COMPLETED, "failure": FAILURE}, "completed, yet"),
        ({"started_at": 2, "ended_at": 3, "end_reason": EndReason.GHOST_SWEEP}, "without a failure"),
        ({"failure": FAILURE}, "without an end"),
        ({"delivered_at": 9}, "delivered without an end"),
        ({"swept_at": 9}, "swept without an end"),
        ({"last_progress_at": 9}, "progress without a start"),
        ({"generation": 0}, "generation 0 is below 1"),
        ({"started_at": 0}, "started_at 0 is before accepted_at 1"),
        ({"started_at": 5, "ended_at": 4, "end_reason": EndReason.KILLED, "failure": FAILURE}, "ended_at 4 is before"),
    ],
)
def test_an_impossible_combination_is_refused_loudly(facts: dict[str, Any], words: str) -> None:
    """The run and the impossibility are named."""
    with pytest.raises(IllegalFactsError, match=f"^run r-1: .*{words}"):
        RunFacts(run_id=RUN, accepted_at=1, **facts)


def test_every_combination_is_either_refused_or_has_a_status() -> None:
    """By enumeration: no combination of present and absent facts falls through."""
    legal = 0
    choices: dict[str, tuple[Any, ...]] = {
        "started_at": (None, 2),
        "last_progress_at": (None, 3),
        "ended_at": (None, 4),
        "end_reason": (None, *EndReason),
        "failure": (None, FAILURE),
        "partial": (False, True),
        "delivered_at": (None, 5),
        "swept_at": (None, 6),
    }
    for values in itertools.product(*choices.values()):
        facts = dict(zip(choices, values, strict=True))
        try:
            status = RunFacts(run_id=RUN, accepted_at=1, **facts).status
        except IllegalFactsError:
            continue
        legal += 1
        assert (status in {"completed", "failed"}) == (facts["ended_at"] is not None)
        assert (status == "completed") == (facts["end_reason"] is EndReason.COMPLETED)
    assert legal == 3 + 8 + 4 * (4 + 8) * 2, "pending, running ×2; completed; four other ends, started or not"
