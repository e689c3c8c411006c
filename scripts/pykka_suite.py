"""Fetch the sdist of the installed pykka and run its test suite with our actor class as one more runtime."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from xml.etree import ElementTree as ET

RUNTIME = """
from understudy.actors import SystemClock
from understudy.actors._kernel.actor import LoopActor
from understudy.actors._kernel.future import LoopFuture
from understudy.actors._kernel.loop import ActorLoop

_loop = ActorLoop(clock=SystemClock(), dead_letters=lambda letter: None)
_loop.run_in_thread()


class JudgedActor(LoopActor):
    kernel = _loop


RUNTIMES["understudy"] = pytest.param(
    Runtime(
        name="understudy",
        actor_class=JudgedActor,
        event_class=threading.Event,
        future_class=LoopFuture,
        sleep_func=time.sleep,
    ),
    id="understudy",
)

"""
FIXTURE = '@pytest.fixture(scope="session", params=RUNTIMES.values())'

# What we do otherwise, on purpose: everything else must pass.
ON_PURPOSE = {
    "test_all_actors_are_stopped_on_base_exception": "a handler's BaseException ends its own actor, not everybody's",
    "test_base_exception_is_logged": "likewise: on_stop of the other actors is not called",
    "test_actor_has_an_uuid4_based_urn": "a number behind a process-unique prefix: a uuid4 is dear",
}


def main() -> int:
    version = importlib.metadata.version("pykka")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        subprocess.run(
            [*pip, "--no-deps", "--no-binary", "pykka", "--dest", str(folder), f"pykka=={version}"],
            check=True,
        )
        with tarfile.open(next(folder.glob("*.tar.gz"))) as archive:
            archive.extractall(folder, filter="data")
        suite = folder / f"pykka-{version}"
        conftest = suite / "tests" / "conftest.py"
        text = conftest.read_text()
        if FIXTURE not in text:
            print(f"pykka {version} declares its runtimes in another way: adapt {Path(__file__).name}")
            return 1
        conftest.write_text(text.replace(FIXTURE, RUNTIME + FIXTURE))
        report = folder / "report.xml"
        subprocess.run(
            [
                sys.executable, "-m", "pytest", "-q", "--tb=no", "-p", "no:cacheprovider", "-k", "understudy",
                "--timeout=60", f"--junitxml={report}", "tests",
            ],
            cwd=suite, check=False,
        )  # fmt: skip
        return judge(version, report)


def judge(version: str, report: Path) -> int:
    """Print the verdict; 0 when just what fails on purpose has failed."""
    cases = list(ET.parse(report).iter("testcase"))  # noqa: S314 - pytest wrote it a moment ago
    failed = {case.get("name", "").split("[")[0] for case in cases if len(case)}
    print(f"pykka {version}: {len(cases) - len(failed)} of {len(cases)} of its tests pass on LoopActor")
    for name in sorted(failed):
        print(f"  not: {name}: {ON_PURPOSE.get(name, 'NOT ON PURPOSE')}")
    for name in sorted(ON_PURPOSE.keys() - failed):
        print(f"  passes, though we meant it not to: {name}")
    return 0 if failed == ON_PURPOSE.keys() and cases else 1


if __name__ == "__main__":
    raise SystemExit(main())
