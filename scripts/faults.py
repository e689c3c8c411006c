"""Everything that can go wrong, on purpose and often: what was lost, done twice, or leaked.

Seeds are printed, and whatever breaks prints the line to see it again. Parts run two at a time; the process trees,
whose deadlines are real, run alone.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import gc
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests"
SEEDS, ROUNDS, EXAMPLES, TREES, CHILDREN, AT_ONCE = 10_000, 700, 800, 200, 10_000, 100
"""Histories, rounds of killed hosts (1.6 kills each), lives beside their model, process trees, children of the soak."""
JOBS = 10
"""Into so many jobs the seeds are dealt, so that both cores have work to the end."""
SUITES = {
    "stores": ["persistence/test_faults.py", "persistence/test_two_processes.py", "lifecycle/test_recovery.py"],
    "races": ["lifecycle/test_races.py", "lifecycle/test_interrupted_exchange.py", "faults/test_found.py"],
    "schema": ["kernel/test_bad_messages.py"],
    "frames": ["results/test_framing.py", "results/test_floods.py"],
    "paths": ["tools/test_confinement.py"],
    "secrets": ["persistence/test_redaction.py", "persistence/test_search_fuzz.py", "processes", "mcp_tools", "cli"],
}
"""Tests of the suite that belong here, as they are."""


@dataclass
class Tally:
    """What a job came to."""

    kills: int = 0
    seeds: int = 0
    runs: int = 0
    lost: int = 0
    twice: int = 0
    leaked: int = 0
    broken: int = 0
    """Anything else that was not as it must be: failed tests, histories with other flaws, jobs that did not finish."""

    def __add__(self, other: Tally) -> Tally:
        both = zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)
        return Tally(*(one + another for one, another in both))

    @property
    def held(self) -> bool:
        """Whether all is as it must be."""
        return not (self.lost or self.twice or self.leaked or self.broken)


@dataclass(frozen=True)
class Job:
    """One process of one part, and how its words are read."""

    part: str
    name: str
    command: list[str]
    read: Callable[[str, int], Tally]
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    alone: bool = False


# -- how each kind of job tells what it has seen ----------------------------------------------------------


def in_json(output: str, _code: int) -> Tally:
    """Its last line is a tally."""
    try:
        return Tally(**json.loads(output.strip().rpartition("\n")[2]))
    except (ValueError, TypeError):
        return Tally(broken=1)


def in_tests(output: str, code: int) -> Tally:
    """pytest's, with `_counting`."""
    runs = re.search(r"^(\d+) runs accepted$", output, re.MULTILINE)
    failed = sum(int(count) for count in re.findall(r"(\d+) (?:failed|errors?)\b", output.strip().rpartition("\n")[2]))
    return Tally(runs=int(runs[1]) if runs else 0, broken=failed or (1 if code else 0))


def in_lives(examples: int, output: str, code: int) -> Tally:
    """The same, of a test with so many examples."""
    return in_tests(output, code) + Tally(seeds=0 if code else examples)


def in_rounds(output: str, _code: int) -> Tally:
    """kill9's."""
    found = re.search(
        r"^(\d+) rounds, (\d+) hosts killed, (\d+) runs accepted, (\d+) rounds broken: lost (\d+), twice (\d+)$",
        output,
        re.MULTILINE,
    )
    if found is None:
        return Tally(broken=1)
    rounds, kills, runs, broken, lost, twice = map(int, found.groups())
    return Tally(kills=kills, seeds=rounds, runs=runs, lost=lost, twice=twice, broken=broken - lost - twice)


def in_trees(output: str, _code: int) -> Tally:
    """kill_trees': whoever is not dead in time was leaked."""
    found = re.search(r"^(\d+) of (\d+) dead in time$", output, re.MULTILINE)
    hosts = re.search(r"^kill -9 host +(\d+)", output, re.MULTILINE)
    if found is None or hosts is None:
        return Tally(broken=1)
    dead, trees, killed = int(found[1]), int(found[2]), int(hosts[1])
    # A killed host had one tree of each of the three kinds.
    return Tally(kills=killed, seeds=1, runs=trees + 2 * killed, leaked=trees - dead)


# -- the parts --------------------------------------------------------------------------------------------


def jobs(asked: argparse.Namespace) -> list[Job]:
    """All there is to do, the longest first."""
    share = 10 if asked.quick else 1
    first = asked.seed or 1
    python = [sys.executable]
    this = [*python, str(Path(__file__))]

    def tests(*files: str) -> list[str]:
        places = [str(TESTS / file) for file in files]
        return [*python, "-m", "pytest", "-q", "-p", "_counting", "--timeout", "3000", *places]

    def dealt(count: int, into: int) -> list[tuple[int, int]]:
        """First seed and number of seeds of each job; a seed that was asked for is the only one."""
        if asked.seed is not None:
            return [(first, 1)]
        each = max(1, count // share // into)
        return [(first + number * each, each) for number in range(into)]

    found = [
        Job("simulation", f"seeds {seed} to {seed + count - 1}", [*this, "--histories", str(seed), str(count)], in_json)
        for seed, count in dealt(SEEDS, JOBS)
    ]
    examples = EXAMPLES // share // 2
    found += [
        Job(
            "lives",
            f"seed {seed}, {examples} lives",
            [*tests("faults/test_lives.py"), f"--hypothesis-seed={seed}"],
            partial(in_lives, examples),
            {"UNDERSTUDY_LIVES": str(examples)},
        )
        for seed, _ in dealt(2, 2 if share == 1 else 1)
    ]
    found += [
        Job(
            "kills",
            f"seeds {seed} to {seed + count - 1}",
            [*python, str(ROOT / "scripts" / "kill9.py"), "--rounds", str(count), "--seed", str(seed)],
            in_rounds,
        )
        for seed, count in dealt(ROUNDS, 2)
    ]
    children = str(CHILDREN // share)
    found.append(Job("soak", f"{children} children", [*this, "--children", children], in_json))
    found += [Job(part, ", ".join(files), tests(*files), in_tests) for part, files in SUITES.items()]
    trees, hosts = str(TREES // share), str(10 // share)
    found.append(
        Job(
            "trees",
            f"seed {first}, {trees} trees",
            [
                *python,
                str(ROOT / "scripts" / "kill_trees.py"),
                "--seed",
                str(first),
                "--rounds",
                trees,
                "--hosts",
                hosts,
            ],
            in_trees,
            alone=True,
        )
    )
    return [job for job in found if not asked.only or job.part in asked.only]


def histories(first: int, count: int) -> int:
    """Simulate so many seeds in this process."""
    from _simulation import simulate  # noqa: PLC0415 - only this job needs it, and where it stands is known by now
    from _verdict import BrokenError  # noqa: PLC0415 - likewise

    gc.freeze()  # what is imported by now need not be looked at after each of them
    tally = Tally()
    for seed in range(first, first + count):
        tally.seeds += 1
        try:
            outcome = simulate(seed)
        except BrokenError as broken:
            tally.leaked += 1
            print(broken, flush=True)
            continue
        except Exception as error:  # noqa: BLE001 - one seed's trouble is not another's
            tally.broken += 1
            print(f"seed {seed}: {error!r}\n  again: ./scripts/faults --only simulation --seed {seed}", flush=True)
            continue
        verdict = outcome.verdict
        tally.kills += outcome.crashes
        tally.runs += outcome.runs
        tally.lost += len(verdict.lost)
        tally.twice += len(verdict.twice)
        tally.leaked += len(verdict.leaked)
        tally.broken += bool(verdict.wrong)
        if not verdict.held:
            print(verdict.error(seed), flush=True)
    print(json.dumps(dataclasses.asdict(tally)))
    return 0 if tally.held else 1


def soak(children: int) -> int:
    """So many children in this process, and what is left of them."""
    from _soak import soak as soaked_by  # noqa: PLC0415 - as above

    with tempfile.TemporaryDirectory(prefix="understudy-soak-") as folder:
        soaked = asyncio.run(soaked_by(Path(folder), children=children, at_once=AT_ONCE))
    for line in (soaked.before, soaked.after, dict(soaked.ends), *soaked.lost, *soaked.twice, *soaked.leaked):
        print(line)
    tally = Tally(runs=soaked.runs, lost=len(soaked.lost), twice=len(soaked.twice), leaked=len(soaked.leaked))
    print(json.dumps(dataclasses.asdict(tally)))
    return 0 if tally.held else 1


# -- the program ------------------------------------------------------------------------------------------


def play(job: Job) -> tuple[Job, Tally]:
    """Run one job, and say how it went."""
    begun = time.monotonic()
    environment = {**os.environ, "PYTHONPATH": str(TESTS / "faults"), **job.environment}
    done = subprocess.run(
        job.command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    tally = job.read(done.stdout, done.returncode)
    if tally.held and done.returncode:
        tally.broken += 1
    verdict = "held" if tally.held else "BROKEN"
    print(f"{job.part:<10} {job.name:<48.48} {time.monotonic() - begun:>6.0f} s  {verdict}", flush=True)
    if not tally.held:
        print(done.stdout[-20_000:], flush=True)
        if job.part not in {"simulation", "kills"}:
            print(f"  again: ./scripts/faults --only {job.part}", flush=True)
    return job, tally


def main() -> int:
    parts = ["simulation", "lives", "kills", "trees", "soak", *SUITES]
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--only", nargs="+", choices=parts, help="these parts")
    options.add_argument("--seed", type=int, help="one history or round, to see it again; else they begin with 1")
    options.add_argument("--quick", action="store_true", help="a tenth of it")
    options.add_argument("--histories", nargs=2, type=int, help=argparse.SUPPRESS)
    options.add_argument("--children", type=int, help=argparse.SUPPRESS)
    asked = options.parse_args()
    sys.path.insert(0, str(TESTS / "faults"))
    if asked.histories is not None:
        return histories(*asked.histories)
    if asked.children is not None:
        return soak(asked.children)
    begun = time.monotonic()
    todo = jobs(asked)
    with ThreadPoolExecutor(2) as pool:
        played = list(pool.map(play, [job for job in todo if not job.alone]))
    played += [play(job) for job in todo if job.alone]
    return report(played, time.monotonic() - begun)


def report(played: list[tuple[Job, Tally]], seconds: float) -> int:
    names = [field.name for field in dataclasses.fields(Tally)]
    print(f"\n{'part':<12}" + "".join(f"{name:>9}" for name in names))
    total = Tally()
    for part in dict.fromkeys(job.part for job, _ in played):
        tally = sum((each for job, each in played if job.part == part), Tally())
        total += tally
        print(f"{part:<12}" + "".join(f"{number:>9,}" for number in dataclasses.astuple(tally)))
    print(f"\n{seconds / 60:.0f} minutes" + ("" if total.held else f"; NOT HELD, broken {total.broken:,}"))
    print(
        f"kills {total.kills:,}, seeds {total.seeds:,}, runs {total.runs:,}, "
        f"lost {total.lost:,}, twice {total.twice:,}, leaked {total.leaked:,}"
    )
    return 0 if total.held else 1


if __name__ == "__main__":
    sys.exit(main())
