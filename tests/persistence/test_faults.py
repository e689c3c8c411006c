"""Every commit point × every fault: nothing half-written, nothing acknowledged lost, and the writer goes on."""

from __future__ import annotations

import errno
import os
import resource
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, cast

import pytest

from understudy.actors.testing import CrashPoint, CrashPointError
from understudy.persistence import Store, StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import Doorstop, Given

    from understudy.persistence._commit import Commit, Point
    from understudy.protocol.commit_points import CommitPoint

POINTS: tuple[Point, ...] = ("accept", "terminal", "merge")
When = Literal["before", "after"]
GROUP = (1, 2, 3)
# Where the volume is that `test_a_disk_that_is_really_full` made for the tests it starts.
SMALL_DISK = os.environ.get("UNDERSTUDY_SMALL_DISK")


class Fault(Protocol):
    """Something that befalls the file until it is lifted. ``sentence`` is what the callers are told."""

    sentence: str
    in_transaction: bool
    """Whether it can begin while the statements are written and COMMIT is not sent; else before BEGIN."""

    def begin(self, store: Store) -> None:
        """From now on."""

    def lift(self) -> None:
        """All is well again; harmless where nothing had begun."""


class Locked:
    """Another connection holds the write lock for longer than the busy timeout."""

    sentence = "the database is locked by another process"
    in_transaction = False

    def __init__(self) -> None:
        self._other: sqlite3.Connection | None = None

    def begin(self, store: Store) -> None:
        self._other = sqlite3.connect(store.path, isolation_level=None, check_same_thread=False)
        self._other.execute("BEGIN IMMEDIATE")

    def lift(self) -> None:
        if self._other is not None:
            self._other.close()
            self._other = None


class PageLimit:
    """The file may not grow any more: SQLite itself says that the disk is full."""

    sentence = "the disk is full"
    in_transaction = False

    def __init__(self) -> None:
        self._connection: sqlite3.Connection | None = None

    def begin(self, store: Store) -> None:
        # Only while the writer stands still, or from its own thread: a limit is of one connection.
        self._connection = store._writer._group.connection
        self._connection.execute("PRAGMA max_page_count = 1")  # never below what there is

    def lift(self) -> None:
        if self._connection is not None:
            self._connection.execute("PRAGMA max_page_count = 1073741823")
            self._connection = None


class FileSizeLimit:
    """The kernel refuses every write to a file (EFBIG): what SQLite calls an I/O error."""

    sentence = "the disk reports an input/output error"
    in_transaction = True

    def __init__(self) -> None:
        self._before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def begin(self, store: Store) -> None:
        assert signal.getsignal(signal.SIGXFSZ) is signal.SIG_IGN, f"the signal would end {store.path}'s tests"
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, self._before[1]))

    def lift(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, self._before)


class FullDisk:
    """The volume is filled to its last byte (ENOSPC)."""

    sentence = "the disk is full"
    in_transaction = True

    def __init__(self) -> None:
        self._filler: Path | None = None

    def begin(self, store: Store) -> None:
        self._filler = store.path.with_name("filler")
        with self._filler.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(b"x" * 4096)
            except OSError as error:
                assert error.errno == errno.ENOSPC  # noqa: PT017 - it always comes: the volume is small

    def lift(self) -> None:
        if self._filler is not None:
            self._filler.unlink(missing_ok=True)


KINDS = (FullDisk,) if SMALL_DISK else (Locked, PageLimit, FileSizeLimit)


@pytest.fixture(params=KINDS, ids=[kind.__name__ for kind in KINDS])
def fault(request: pytest.FixtureRequest) -> Iterator[Fault]:
    """One of the kinds; lifted at the end, whatever became of the test."""
    made = cast("Fault", request.param())
    yield made
    made.lift()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the store of this test is."""
    return Path(SMALL_DISK or tmp_path) / f"{tmp_path.name}.db"


def hooked(point: Point, when: When, fault: Fault, store: Store) -> CrashPoint:
    """A commit hook that lets ``fault`` begin at a commit point, once."""

    class Begin(CrashPoint):
        def __call__(self, point: CommitPoint, /) -> None:
            try:
                super().__call__(point)
            except CrashPointError:
                fault.begin(store)

    return Begin(cast("CommitPoint", f"{point}.{when}"))


def outcome(commit: Commit) -> str:
    """What its caller hears."""
    try:
        commit.result(30)
    except (StoreUnavailableError, CrashPointError) as error:
        return str(error)
    return "committed"


def whole(path: Path, given: Given, point: Point, written: dict[int, bool]) -> None:
    """Opened again, the file is whole and has just what it should have."""
    with Store.open(path, wall_ms=lambda: 0) as store:
        assert store.problems() == []
        assert {number: given.written(store, point, number) for number in written} == written


@pytest.mark.parametrize("point", POINTS)
def test_a_fault_before_the_commit_reaches_everybody_it_concerns_and_nothing_is_written(
    path: Path, heavy: Given, doorstop: Doorstop, fault: Fault, point: Point
) -> None:
    """The whole group is told; when the fault is lifted the same writer does the same work."""
    with Store.open(path, wall_ms=lambda: 0, commit_hook=doorstop, busy_timeout_ms=1) as store:
        store.transaction(heavy.opened(), *(op for n in GROUP for op in heavy.until(point, n))).result(10)
        doorstop.hold(store)
        group = [store.transaction(*heavy.at(point, number), point=point) for number in GROUP]
        if fault.in_transaction:
            doorstop.then = hooked(point, "before", fault, store)
        else:
            fault.begin(store)
        doorstop.release()
        for heard in map(outcome, group):
            assert heard.startswith(fault.sentence)
        assert not any(heavy.written(store, point, number) for number in GROUP)
        fault.lift()
        assert store.problems() == []
        assert outcome(store.transaction(*heavy.at(point, 1), point=point)) == "committed"
    whole(path, heavy, point, {1: True, 2: False, 3: False})


@pytest.mark.parametrize("point", POINTS)
def test_a_fault_after_the_commit_takes_nothing_back(
    path: Path, heavy: Given, doorstop: Doorstop, fault: Fault, point: Point
) -> None:
    """The group is committed and acknowledged; the next one is told, until the fault is lifted."""
    with Store.open(path, wall_ms=lambda: 0, commit_hook=doorstop, busy_timeout_ms=1) as store:
        store.transaction(heavy.opened(), *(op for n in (*GROUP, 4) for op in heavy.until(point, n))).result(10)
        doorstop.hold(store)
        group = [store.transaction(*heavy.at(point, number), point=point) for number in GROUP]
        doorstop.then = hooked(point, "after", fault, store)
        doorstop.release()
        assert [outcome(commit) for commit in group] == ["committed"] * 3
        assert outcome(store.transaction(*heavy.at(point, 4), point=point)).startswith(fault.sentence)
        assert [heavy.written(store, point, number) for number in (*GROUP, 4)] == [True, True, True, False]
        fault.lift()
        assert outcome(store.transaction(*heavy.at(point, 4), point=point)) == "committed"
    whole(path, heavy, point, dict.fromkeys((*GROUP, 4), True))


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("when", ["before", "after"])
def test_an_exception_at_a_commit_point_is_its_own_callers_alone(
    path: Path, given: Given, doorstop: Doorstop, point: Point, when: When
) -> None:
    """Before the commit it undoes that transaction and no neighbour; after it, the commit stands."""
    at = cast("CommitPoint", f"{point}.{when}")
    with Store.open(path, wall_ms=lambda: 0, commit_hook=doorstop) as store:
        store.transaction(given.opened(), *(op for n in GROUP for op in given.until(point, n))).result(10)
        doorstop.hold(store)
        group = [store.transaction(*given.at(point, number), point=point) for number in GROUP]
        doorstop.then = CrashPoint(at, hit=2)
        doorstop.release()
        assert [outcome(commit) for commit in group] == ["committed", f"struck at {at}", "committed"]
        again = outcome(store.transaction(*given.at(point, 4 if point == "accept" else 2), point=point))
        assert again == "committed"
    whole(path, given, point, {1: True, 2: when == "after" or point != "accept", 3: True})


@pytest.mark.skipif(SMALL_DISK is not None, reason="has nothing to do with the disk's size")
def test_after_an_input_output_error_the_connection_is_not_trusted_any_more(path: Path, heavy: Given) -> None:
    """The next work gets a new one, set up like the first."""
    fault = FileSizeLimit()
    with Store.open(path, wall_ms=lambda: 0) as store:
        store.transaction(heavy.opened()).result(10)
        struck = store._writer._group.connection
        fault.begin(store)
        try:
            assert outcome(store.transaction(*heavy.accept(1))).startswith(fault.sentence)
        finally:
            fault.lift()
        assert outcome(store.transaction(*heavy.accept(1))) == "committed"
        fresh = store._writer._group.connection
        assert fresh is not struck
        assert [fresh.execute(f"PRAGMA {name}").fetchone()[0] for name in ("synchronous", "foreign_keys")] == [2, 1]


def struck_host(path: Path, what: str) -> subprocess.Popen[str]:
    """The program struck_host.py, with its acknowledgements on a pipe."""
    program = Path(__file__).with_name("struck_host.py")
    return subprocess.Popen([sys.executable, str(program), str(path), what], stdout=subprocess.PIPE, text=True)


@pytest.mark.slow  # a process of its own for each
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_kill_at_a_commit_point_leaves_all_of_it_or_nothing(
    path: Path, given: Given, point: Point, when: When
) -> None:
    """``kill -9`` directly before the COMMIT of a group: none of it is there. Directly after: all of it."""
    with struck_host(path, f"{point}.{when}") as host:
        said, _ = host.communicate(timeout=60)
    assert (host.returncode, said) == (-signal.SIGKILL, "made\n")
    whole(path, given, point, dict.fromkeys(GROUP, when == "after"))


@pytest.mark.slow  # a process of its own
def test_a_kill_amid_traffic_loses_nothing_that_was_acknowledged(path: Path, given: Given) -> None:
    """Four threads commit as fast as they can; whatever one of them was told is there afterwards."""
    told: list[tuple[Point, int]] = []
    with struck_host(path, "traffic") as host:
        assert host.stdout is not None
        for line in host.stdout:
            point, _, number = line.partition(" ")
            told.append((cast("Point", point), int(number)))
            if len(told) == 200:
                host.kill()
                break
        # What was said between the last line read and the kill counts too; the last line may be cut short.
        for line in host.stdout:
            if line.endswith("\n"):
                point, _, number = line.partition(" ")
                told.append((cast("Point", point), int(number)))
    assert host.returncode == -signal.SIGKILL
    with Store.open(path, wall_ms=lambda: 0) as store:
        assert store.problems() == []
        assert [said for said in told if not given.written(store, *said)] == []


@pytest.mark.slow  # a process of its own
@pytest.mark.skipif(SMALL_DISK is not None, reason="this is the small disk")
def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    """The matrix once more, on a volume of 8 MB whose last byte is taken: ENOSPC at the very COMMIT."""
    mount = 'mount -t tmpfs -o size=8m none "$UNDERSTUDY_SMALL_DISK" && exec "$@"'
    unshare = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, "sh"]
    environment = {**os.environ, "UNDERSTUDY_SMALL_DISK": str(tmp_path)}
    try:
        subprocess.run([*unshare, "true"], env=environment, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no volume can be mounted here ({error}); PageLimit proves the same without one")
    matrix = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "FullDisk", __file__]
    done = subprocess.run([*unshare, *matrix], env=environment, check=False, capture_output=True, text=True)
    assert "6 passed" in done.stdout, done.stdout + done.stderr
