"""``python -m understudy.gateway.demo``: runs the first act, lets it die, and runs the second."""

from __future__ import annotations

import sys
from pathlib import Path

from understudy.gateway.demo.acts import first_act, second_act
from understudy.gateway.demo.play import play
from understudy.gateway.demo.stage import stage


def main() -> int:
    """The whole demo, in a temporary folder; or one act, in a process of its own."""
    if len(sys.argv) == 3:  # noqa: PLR2004 - an act and its folder
        act, folder = sys.argv[1], Path(sys.argv[2])
        if act == "second":
            return second_act(folder, stage())
        first_act(folder, stage())
        return 1  # it was to be killed
    return play()


if __name__ == "__main__":
    raise SystemExit(main())
