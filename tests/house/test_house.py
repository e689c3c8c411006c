"""The house: rooms, public faces, wheel."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ["protocol", "persistence", "actors", "gateway"]  # each may import those before it
ALLOWED_OUTSIDE = {
    "protocol": {"pydantic", "pydantic_core"},
    "persistence": {"pydantic", "sqlite_utils"},
    "actors": {"pydantic", "pykka", "tenacity", "pytest"},
}
ALLOWED_BELOW = {
    "actors/mcp": {"mcp", "mcp_types", "anyio", "httpx2"},  # an extra, imported for a child that has MCP servers
    "actors/models": {"openai", "anthropic"},  # extras: each model imports its own SDK when it is made
    "actors/processes": {"killing"},  # the warden's neighbour: a program that starts in milliseconds imports no package
}


def imports(file: Path) -> set[str]:
    """Every module a file imports."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: rooms import by full name"
            found.add(node.module or "")
    return found


@pytest.mark.parametrize("room", ROOMS)
def test_imports_point_one_way(room: str) -> None:
    """Gateway → actors → persistence → protocol, and outside packages only where the architecture says."""
    below = ROOMS[: ROOMS.index(room) + 1]
    for file in (ROOT / room).rglob("*.py"):
        for name in imports(file):
            top, _, rest = name.partition(".")
            if top == "understudy":
                assert rest.split(".")[0] in below, f"{file} imports {name}"
            elif top not in sys.stdlib_module_names and room in ALLOWED_OUTSIDE:
                below_it = ALLOWED_BELOW.get(str(file.parent.relative_to(ROOT)), set())
                assert top in ALLOWED_OUTSIDE[room] | below_it, f"{file} imports {name}"


@pytest.mark.parametrize(
    "room", ["protocol", "actors", "actors/models", "actors/processes", "actors/testing", "actors/tools"]
)
def test_the_public_face_is_small_sorted_and_real(room: str) -> None:
    """What __all__ says is there, and nothing else is."""
    tree = ast.parse((ROOT / room / "__init__.py").read_text())
    listed = next(
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "__all__"
    )
    bound = {a.asname or a.name for node in tree.body if isinstance(node, ast.ImportFrom) for a in node.names}
    assert set(listed) == bound
    assert len(listed) <= 27


def test_every_package_is_listed_for_the_wheel() -> None:
    """A new sub-package that is not in pyproject.toml would be missing from the wheel."""
    listed = set(re.findall(r'^  "(understudy\.[\w.]+)",$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE))
    packages = {
        f"understudy.{'.'.join(f.parent.relative_to(ROOT).parts)}"
        for r in ROOMS
        for f in (ROOT / r).rglob("__init__.py")
    }
    assert listed == packages


@pytest.mark.slow
def test_a_wheel_holds_only_understudy_and_leaves_the_hosts_own_folders_alone(tmp_path: Path) -> None:
    """Installed into a fresh environment, it works from a folder that has its own actors/ and protocol/."""
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(ROOT)],
        check=True, capture_output=True,
    )  # fmt: skip
    wheel = next(tmp_path.glob("*.whl"))
    tops = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"understudy"}

    # pip installs the wheel into an environment of its own; the dependencies are borrowed from this one.
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", str(wheel)],
        check=True, capture_output=True,
    )  # fmt: skip
    borrowed = next(Path(path) for path in sys.path if path.endswith("site-packages"))
    host = tmp_path / "host"
    for room in ROOMS:
        (host / room).mkdir(parents=True)
        (host / room / "__init__.py").write_text("raise ImportError('the host\\'s own, not understudy\\'s')\n")
    program = (
        f"import sys; sys.path.append({str(borrowed)!r})\n"
        "import understudy.actors, understudy.gateway, understudy.persistence, understudy.protocol\n"
        "from understudy.actors.testing import plugin\n"
        "print(understudy.actors.__file__)\n"
    )
    seen = subprocess.run([str(python), "-c", program], cwd=host, capture_output=True, text=True, check=False)
    assert seen.stdout.startswith(str(tmp_path / "venv")), seen.stderr
