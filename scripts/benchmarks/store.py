"""The store: what a turn, a commit, a tail and a search cost as everything around them grows."""

from __future__ import annotations

import random
import statistics
import tempfile
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from _ratio import Ratio, interleaved, median_ratio

from understudy.actors.inheritance import inherited_block
from understudy.persistence import Store, _writer
from understudy.persistence.operations import AppendTurns, OpenSession
from understudy.protocol import SessionKey
from understudy.protocol.model import Turn

if TYPE_CHECKING:
    from collections.abc import Callable

WINDOW = 200
LENGTH = 10_000
PRODUCERS, TURNS_EACH = 32, 40
TAIL = 3_000
LINE = "said about loaders, settings and the file that holds them"
SEARCHED = 100_000


def _opened(folder: str | Path, name: str, *keys: str) -> Store:
    store = Store.open(Path(folder) / f"{name}.db", wall_ms=lambda: 0)
    for key in keys:
        store.transaction(OpenSession(SessionKey(key), at=0)).result()
    return store


def _append(store: Store, key: str, *texts: str) -> None:
    store.transaction(AppendTurns(SessionKey(key), 1, tuple(Turn("user", text) for text in texts))).result()


def _fill(store: Store, key: str, texts: list[str]) -> None:
    for start in range(0, len(texts), 5_000):
        _append(store, key, *texts[start : start + 5_000])


def _repeat(work: Callable[[], object], times: int) -> list[float]:
    """The seconds of so many calls, each by itself."""
    taken = []
    for _ in range(times):
        begin = time.perf_counter()
        work()
        taken.append(time.perf_counter() - begin)
    return taken


def _grown(folder: str, name: str, length: int) -> Store:
    """A store whose one session has grown turn by turn, as sessions do."""
    store = _opened(folder, name, "s")
    for number in range(length):
        _append(store, "s", f"{number} {LINE}")
    return store


def _turns(runs: int) -> Ratio:
    """A window of a short and one of a long session, turn by turn, so that a slow disk slows both."""
    ratios, micros = [], []
    for run in range(runs):
        with tempfile.TemporaryDirectory() as folder:
            short, long = _grown(folder, "short", 200 - WINDOW // 2), _grown(folder, "long", LENGTH - WINDOW // 2)
            taken: dict[Store, list[float]] = {short: [], long: []}
            for number in range(WINDOW):
                for store in (short, long) if (number + run) % 2 else (long, short):
                    begin = time.perf_counter()
                    _append(store, "s", f"{number} {LINE}")
                    taken[store].append(time.perf_counter() - begin)
            ratios.append(statistics.median(taken[long]) / statistics.median(taken[short]))
            micros.append(statistics.median(taken[long]) * 1e6)
            short.close()
            long.close()
    return Ratio(
        f"cost of a turn near {LENGTH:,} ÷ near 200 of one session", statistics.median(ratios), 1.2,
        note=f"{statistics.median(micros):.0f} µs, committed, synchronous FULL",
    )  # fmt: skip


def _produce(store: Store, largest_group: int) -> None:
    """Producers that each wait for their turn to be committed; the writer takes so many at once."""

    def produce(key: str) -> None:
        for number in range(TURNS_EACH):
            _append(store, key, f"{number} {LINE}")

    usual, _writer._LARGEST_GROUP = _writer._LARGEST_GROUP, largest_group  # noqa: SLF001
    try:
        threads = [threading.Thread(target=produce, args=(f"s{number}",)) for number in range(PRODUCERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        _writer._LARGEST_GROUP = usual  # noqa: SLF001


def _group_commit(runs: int) -> Ratio:
    with tempfile.TemporaryDirectory() as folder:
        store = _opened(folder, "store", *(f"s{number}" for number in range(PRODUCERS)))
        taken = interleaved({"group": lambda: _produce(store, 1024), "single": lambda: _produce(store, 1)}, runs)
        store.close()
    rate = PRODUCERS * TURNS_EACH / statistics.median(run["group"] for run in taken)
    return Ratio(
        f"group commit ÷ commit per turn, {PRODUCERS} producers", median_ratio(taken, "single", "group"), 1.5,
        at_most=False, note=f"{rate:,.0f} turns a second, synchronous FULL",
    )  # fmt: skip


def _long_and_short(runs: int, name: str, read: Callable[[Store, str], object]) -> Ratio:
    """Reading the end of a transcript of 1 M characters beside that of one of 10 k."""
    with tempfile.TemporaryDirectory() as folder:
        store = _opened(folder, "store", "short", "long")
        for key, characters in (("short", 10_000), ("long", 1_000_000)):
            _fill(store, key, [f"{number} {LINE}" for number in range(characters // len(f"user: 100 {LINE}\n"))])
        reads = {key: partial(_repeat, partial(read, store, key), 500) for key in ("short", "long")}
        taken = interleaved(reads, runs)
        store.close()
    micros = statistics.median(run["long"] for run in taken) / 500 * 1e6
    return Ratio(name, median_ratio(taken, "long", "short"), 1.5, note=f"{micros:.0f} µs")


def _tail(runs: int) -> Ratio:
    name = f"tail of {TAIL:,} characters, 1 M-character transcript ÷ 10 k"
    return _long_and_short(runs, name, lambda store, key: store.transcripts.tail(key, TAIL))


def _inherited(runs: int) -> Ratio:
    name = "inherited block, parent of 1 M characters ÷ 10 k"
    return _long_and_short(runs, name, lambda store, key: inherited_block(store, key, tail_chars=TAIL))


# A word for every share of the turns it is in: everywhere, in between, and rare.
SHARES = {"everywhere": 1.0, "most": 0.6, "half": 0.49, "third": 0.3, "tenth": 0.1, "hundredth": 0.01, "rare": 0.0005}
ALONE = "everywhere, for an agent that said nothing"


def _search(runs: int) -> Ratio:
    chance = random.Random(1)  # noqa: S311 - the same turns each time
    texts = [
        " ".join([f"{number} {LINE}", *(word for word, share in SHARES.items() if chance.random() < share)])
        for number in range(SEARCHED)
    ]
    with tempfile.TemporaryDirectory() as folder:
        store = _opened(folder, "store", *(f"s{number}" for number in range(20)))
        for number in range(20):
            _fill(store, f"s{number}", texts[number::20])
        store.transaction(OpenSession(SessionKey("lonely"), at=0, agent_id="lonely")).result()
        searches = {word: partial(store.search, word, agent_id="default") for word in SHARES}
        searches[ALONE] = partial(store.search, "everywhere", agent_id="lonely")
        taken: dict[str, list[float]] = {name: [] for name in searches}
        for _ in range(runs):
            for name, search in searches.items():
                search()  # warm
                taken[name].append(statistics.median(_repeat(search, 15)))
        store.close()
    middle = {word: statistics.median(seconds) * 1e3 for word, seconds in taken.items()}
    alone = middle.pop(ALONE)
    worst = max(middle, key=lambda word: middle[word])
    ratio = statistics.median(every / rare for every, rare in zip(taken["everywhere"], taken["rare"], strict=True))
    return Ratio(
        "search at 100k turns: term in every turn ÷ rare term, p50", ratio, 10,
        note=f"rare {middle['rare']:.2f} ms; worst in between: “{worst}” {middle[worst]:.1f} ms; "
        f"{ALONE}: {alone:.0f} ms",
    )  # fmt: skip


def measure(runs: int = 5) -> list[Ratio]:
    """The store's lines of the bar."""
    return [_turns(runs), _group_commit(runs), _tail(runs), _inherited(runs), _search(runs)]
