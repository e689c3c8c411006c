"""Measure the bar: ``./scripts/bench [NAME …] [--runs N]``; exits 1 when a ratio misses it."""

from __future__ import annotations

import argparse
import importlib
import platform
import sys
from pathlib import Path

SUITES = ("kernel", "store", "lifecycle", "models", "gateway")


def main() -> int:
    parser = argparse.ArgumentParser(description="Ratios of one interleaved run, medians.")
    parser.add_argument("suites", nargs="*", default=SUITES, metavar="NAME", help=f"of {', '.join(SUITES)}")
    parser.add_argument("--runs", type=int, default=5, help="interleaved runs (default 5)")
    options = parser.parse_args()
    unknown = [name for name in options.suites if name not in SUITES]
    if unknown or options.runs < 1:
        parser.error(f"unknown {unknown}: use {', '.join(SUITES)}" if unknown else "--runs must be 1 or more")
    print(f"Python {platform.python_version()}, {options.runs} interleaved runs, medians of ratios")
    missed = 0
    for name in options.suites:
        for ratio in importlib.import_module(name).measure(options.runs):
            print(ratio.row(), flush=True)
            missed += not ratio.met
    return 1 if missed else 0


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    raise SystemExit(main())
