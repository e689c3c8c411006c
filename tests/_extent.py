"""How far a test goes that could go on for ever: so far each time, and all the way for `UNDERSTUDY_THOROUGH=1`."""

from __future__ import annotations

import os

THOROUGH = os.environ.get("UNDERSTUDY_THOROUGH", "0") != "0"


def so_far(each_time: int, all_the_way: int) -> int:
    """How many seeds, examples or characters."""
    return all_the_way if THOROUGH else each_time
