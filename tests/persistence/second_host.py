"""A second process on the same file: does what it is told on its standard input. See test_two_processes.py.

Usage: second_host.py DATABASE; then one command a line, each answered by one line:
``accept N``, ``sees N``, ``live FIRST LAST`` and ``race LAST``.
"""

from __future__ import annotations

import json
import sys
from threading import Thread

from conftest import Given

from understudy.persistence import DuplicateRunError, Store
from understudy.persistence.operations import ClaimSession


def live(store: Store, given: Given, first: int, last: int) -> int:
    """Take runs from accept to merge, two threads at a time; gives how many."""
    numbers = iter(range(first, last + 1))

    def work() -> None:
        for number in numbers:
            store.transaction(*given.until("terminal", number), point="accept").result()
            store.transaction(given.finish(number), point="terminal").result()
            store.transaction(given.merge(number), point="merge").result()

    threads = [Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return last + 1 - first


def race(store: Store, given: Given, host: str, last: int) -> dict[str, list[int]]:
    """Try to be the first with everything that only one may do; gives where it was."""
    won: dict[str, list[int]] = {"accept": [], "start": [], "finish": [], "merge": [], "claim": []}
    offset = 0 if host == "a" else 1000  # runs of its own, under the keys that the other uses too
    for number in range(1, last + 1):
        try:
            store.transaction(*given.accept(offset + 100 + number, idempotency_key=f"key {number}")).result()
            won["accept"].append(number)
        except DuplicateRunError:
            pass
        for what, operation in (
            ("start", given.start(number)),
            ("finish", given.finish(number)),
            ("merge", given.merge(number)),
        ):
            if store.transaction(operation).result() == (True,):
                won[what].append(number)
        if store.transaction(ClaimSession(given.child(number), host, stale_before=0)).result() == (None,):
            won["claim"].append(number)
    return won


def main() -> None:
    given = Given()
    with Store.open(sys.argv[1], wall_ms=lambda: 0, busy_timeout_ms=60_000) as store:
        for line in sys.stdin:
            command, *numbers = line.split()
            first, *rest = map(int, numbers)
            answer: object = None
            if command == "accept":
                store.transaction(given.opened(), *given.accept(first), point="accept").result()
            elif command == "sees":
                answer = store.runs.get(given.run_id(first)) is not None
            elif command == "live":
                answer = live(store, given, first, rest[0])
            else:
                answer = race(store, given, "b", first)
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
