"""The pages people read are true: their code runs and prints what they say, and what they name is there."""

from __future__ import annotations

import html
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import get_args

import pytest
from _program import commands

from understudy.protocol import EndReason
from understudy.protocol.ending import ErrorKind

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
TEST_FILE = ROOT / "docs" / "testing.md"
PICTURE = ROOT / "docs" / "demo.svg"


def blocks(page: Path, language: str) -> str:
    """Everything in that language on a page, as one text: a later block may use what an earlier one defined."""
    return "".join(re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE))


def run_here(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A Python of its own, in an empty folder, where a warning is an error."""
    return subprocess.run(
        [sys.executable, "-W", "error", *arguments], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page != TEST_FILE and blocks(page, "python")],
    ids=lambda page: page.name,
)
def test_the_code_of_a_page_runs_as_it_stands(page: Path, tmp_path: Path) -> None:
    """And prints what the page says that it prints."""
    (tmp_path / "agents.toml").write_text("max_spawn_depth = 2\n")
    run = run_here(tmp_path, "-c", blocks(page, "python"))
    assert run.returncode == 0, run.stderr
    printed = blocks(page, "text")
    if printed:
        assert run.stdout == printed


def test_the_readmes_code_fits_on_the_first_screen() -> None:
    """Fifteen lines, and a few empty ones between them."""
    lines = [line for line in blocks(ROOT / "README.md", "python").splitlines() if line]
    assert len(lines) <= 15


@pytest.mark.slow
def test_the_test_file_of_the_page_on_testing_passes(tmp_path: Path) -> None:
    """With nothing but the installed package: the fixtures are there by themselves. Slow: four of its hosts die."""
    (tmp_path / "test_atlas.py").write_text(blocks(TEST_FILE, "python"))
    run = run_here(tmp_path, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", "test_atlas.py")
    assert run.returncode == 0, run.stdout
    assert run.stdout.splitlines()[-1].startswith("14 passed")


@pytest.mark.slow
def test_the_demo_ends_as_the_picture_shows(tmp_path: Path) -> None:
    """Two hosts, one of them killed: five seconds, most of them spent waiting for a child that hangs."""
    run = run_here(tmp_path, "-m", "understudy.gateway.demo")
    assert run.returncode == 0, run.stderr
    picture = [
        html.unescape(text).replace("\xa0", " ") for text in re.findall(r">([^<>\n]+)</text>", PICTURE.read_text())
    ]
    ends = dict(re.findall(r"^  (\w+) +(\w+)", run.stdout.partition("has its one result:")[2], re.MULTILINE))
    assert len(ends) == 8
    for label, end in ends.items():
        lines = [place for place, text in enumerate(picture) if text.strip() == label]
        assert any(picture[place + 1].startswith(end) for place in lines), f"{label} {end}"
    for said in run.stdout.splitlines()[-3:]:
        assert not said or said in picture


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_scripts_of_a_page_exist(page: Path) -> None:
    """Every relative link with its heading, and every ./scripts/…."""
    text = page.read_text()
    for target, heading in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", text):
        file = page.parent / target if target else page
        assert file.is_file(), target
        assert not heading or heading in headings(file), f"{target}#{heading}"
    for script in re.findall(r"\./scripts/[\w-]+", text):
        assert os.access(ROOT / script, os.X_OK), script


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_extras_that_a_page_names_exist(page: Path) -> None:
    """Every ``understudy …`` in a line of code, and every ``understudy[…]``."""
    text = page.read_text()
    code = re.findall(r"`([^`\n]+)`", text) + re.findall(
        r"^```(?:console|text|)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE
    )
    named = {word for line in code for word in re.findall(r"^(?:\$ )?understudy ([a-z-]+)\b", line, re.MULTILINE)}
    known = {name.split()[0] for name in commands()}
    assert named <= known, named - known
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for asked in re.findall(r"understudy\[([\w,]+)\]", text):
        assert set(asked.split(",")) <= set(extras), asked


def headings(page: Path) -> set[str]:
    """A page's headings, as links name them."""
    found = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in found}


def test_the_main_road_leads_through_files_that_are_there() -> None:
    """Whoever follows the page on architecture finds each module it names."""
    named = re.findall(r"(?:\b\w+/)*\b\w+\.py\b", (ROOT / "docs" / "architecture.md").read_text())
    assert "session.py" in named
    assert [name for name in named if not (ROOT / "actors" / name).is_file()] == []


def test_the_page_on_supervision_names_every_end_and_no_other() -> None:
    """Its table is the closed set of reasons, with every kind of failure."""
    page = (ROOT / "docs" / "supervision.md").read_text()
    rows = re.findall(r"^\| (`\w+`)? ?\| (.*?) ?\| .* \|$", page, re.MULTILINE)
    assert [reason.strip("`") for reason, _ in rows if reason] == list(EndReason)
    kinds = {kind for _, cell in rows for kind in re.findall(r"`(\w+)`", cell)}
    assert kinds == set(get_args(ErrorKind))
