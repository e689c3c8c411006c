"""Let trees of processes run into a hard timeout, and look for survivors.

A round is one run of a worker that has built a tree: a tool that sleeps, a loop that hears no signal, or a tool in
a session of its own that holds stdout and ignores TERM. Its hard timeout is 1 s, its TERM grace 0.5 s; 3 s after the
deadline nobody of it may live. On a machine so busy that a worker needs a second to start, the trees are not complete
by then (see "built"): give them longer with --timeout. Then whole hosts with one tree of each kind are killed by
SIGKILL; 5 s later nobody may live. Every process of a tree carries its round in its environment, so that one nobody
knew of is found too.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "processes"))

from understudy.actors import ProcessRunner, Runtime  # noqa: E402 - after the workers' folder
from understudy.protocol import RuntimeConfig, Spawn  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

    from understudy.actors import Session

KINDS = {"sleeper": "runs sleep 600", "spinner": "ignores signals", "holder": "own session"}
GRACE = 0.5
WITHIN, HOST_WITHIN = 3.0, 5.0
GIVE_UP = 30.0
MARK = "KILL_TREES_ROUND"


class Round(NamedTuple):
    """What was seen of one tree."""

    kind: str
    size: int
    """Processes of it shortly before the deadline."""
    built: bool
    """Whether it was complete by then; on a busy machine a worker may take longer to start."""
    seconds: float
    """From the deadline, or the host's death, to the last one's death; infinite when it lives."""


def runners() -> dict[str, ProcessRunner]:
    return {kind: ProcessRunner(f"_workers:{kind}", term_grace=GRACE) for kind in KINDS}


def pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def marked(mark: str) -> list[int]:
    """Every living process with this mark in its environment."""
    found = []
    for pid in pids():
        with contextlib.suppress(OSError):
            environment = Path(f"/proc/{pid}/environ").read_bytes()  # of a dead one it is empty
            if f"{MARK}={mark}\0".encode() in environment:
                found.append(pid)
    return found


def until(gone: Callable[[], bool], since: float) -> float:
    """How long after ``since`` it was so."""
    while not gone():
        if time.monotonic() - since > GIVE_UP:
            return float("inf")
        time.sleep(0.01)
    return time.monotonic() - since


def play(session: Session, kind: str, folder: Path, mark: str, timeout: float) -> Round:
    """One tree, from its beginning to its death."""
    cwd = folder / mark
    cwd.mkdir()
    begun = time.monotonic()
    handle = session.spawn(
        Spawn(task=mark, runner=kind, cwd=str(cwd), env={MARK: mark}, timeout_ms=round(timeout * 1000))
    )
    time.sleep(max(0.0, begun + timeout - 0.05 - time.monotonic()))
    size, built = len(marked(mark)), (cwd / "pids").exists()
    handle.result(timeout=GIVE_UP)
    return Round(kind, size, built, until(lambda: not marked(mark), begun + timeout))


def host(folder: Path, mark: str) -> None:
    """A host with one tree of each kind; it waits for its death."""
    with Runtime(folder / "agents.db", runners=runners()) as runtime:
        session = runtime.session("agent:atlas:main", workspace=folder)
        for kind in KINDS:
            (folder / kind).mkdir()
            session.spawn(Spawn(task=mark, runner=kind, cwd=str(folder / kind), env={MARK: mark}))
        while not all((folder / kind / "pids").exists() for kind in KINDS):
            time.sleep(0.01)
        print("ready", flush=True)
        time.sleep(GIVE_UP)


def kill_host(mark: str) -> Round:
    """Kill -9 a host in the middle of its work."""
    with tempfile.TemporaryDirectory(prefix="kill-trees-") as folder:
        program = [sys.executable, __file__, "--host", folder, "--mark", mark]
        with subprocess.Popen(program, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            wardens = children(process.pid)
            size = len(marked(mark)) + len(wardens)
            process.kill()
            struck = time.monotonic()
            process.wait()
        seconds = until(lambda: not marked(mark) and not any(map(alive, wardens)), struck)
    return Round("kill -9 host", size, True, seconds)  # noqa: FBT003 - as its name says


def children(parent: int) -> list[int]:
    return [pid for pid in pids() if stat(pid)[1:2] == [str(parent)]]


def alive(pid: int) -> bool:
    return bool(stat(pid)) and stat(pid)[0] not in {"Z", "X"}


def stat(pid: int) -> list[str]:
    """State, parent and the rest; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=200)
    options.add_argument("--hosts", type=int, default=10)
    options.add_argument("--seed", type=int, default=1, help="decides the order of the kinds")
    options.add_argument("--timeout", type=float, default=1.0, help="seconds until a tree's deadline")
    options.add_argument("--at-once", type=int, default=2, help="trees at the same time")
    options.add_argument("--host", type=Path, help=argparse.SUPPRESS)
    options.add_argument("--mark", help=argparse.SUPPRESS)
    asked = options.parse_args()
    if asked.host is not None:
        host(asked.host, asked.mark)
        return 0
    chance = random.Random(asked.seed)  # noqa: S311 - repeatable, not secret
    kinds = [list(KINDS)[number % len(KINDS)] for number in range(asked.rounds)]
    chance.shuffle(kinds)
    this = f"{os.getpid()}-{asked.seed}"
    config = RuntimeConfig(max_children_per_agent=asked.at_once)
    with (
        tempfile.TemporaryDirectory(prefix="kill-trees-") as folder,
        Runtime(":memory:", runners=runners(), config=config) as runtime,
        ThreadPoolExecutor(asked.at_once) as pool,
    ):
        session = runtime.session("agent:atlas:main", workspace=folder)
        rounds = list(
            pool.map(
                lambda numbered: play(session, numbered[1], Path(folder), f"{this}-{numbered[0]}", asked.timeout),
                enumerate(kinds),
            )
        )
    rounds += [kill_host(f"{this}-host-{number}") for number in range(asked.hosts)]
    return report(rounds, asked.seed, asked.timeout)


def report(rounds: list[Round], seed: int, timeout: float) -> int:
    seen: dict[str, list[Round]] = defaultdict(list)
    for played in rounds:
        seen[played.kind].append(played)
    print(
        f"seed {seed}: hard timeout {timeout:g} s, TERM grace {GRACE:g} s; seconds from the deadline or the host's end"
    )
    heads = f"{'dead in time':>13} {'processes':>10} {'median':>7} {'worst':>7} {'limit':>6}"
    print(f"{'tree':<14} {'rounds':>6} {'built':>6} {heads}")
    late = 0
    for kind, played in seen.items():
        limit = WITHIN if kind in KINDS else HOST_WITHIN
        seconds = [one.seconds for one in played]
        in_time = sum(one <= limit for one in seconds)
        late += len(played) - in_time
        sizes = f"{min(one.size for one in played)}–{max(one.size for one in played)}"
        numbers = f"{statistics.median(seconds):>7.2f} {max(seconds):>7.2f} {limit:>6g}"
        built = sum(one.built for one in played)
        print(f"{kind:<14} {len(played):>6} {built:>6} {in_time:>13} {sizes:>10} {numbers}")
    print(f"{len(rounds) - late} of {len(rounds)} dead in time")
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main())
