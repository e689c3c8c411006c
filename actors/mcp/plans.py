"""What a child's ``.mcp.json`` asks for: untrusted data that names programs, read once and checked entry by entry."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, ValidationError

from understudy.actors.mcp.names import server_name
from understudy.actors.tools.files import SERVERS_FILE
from understudy.protocol._explain import explain

MAX_FILE = 256 * 1024
MOST_SERVERS = 20

Expand: TypeAlias = Callable[[str], str]

# Shorter values are words like "1" or "debug": to hide them would spoil every text.
_SHORTEST_SECRET = 8
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


class PlanError(Exception):
    """The file, or one entry of it, cannot be used; says why, without a value from it."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One server as the file describes it, every variable in its place."""

    name: str
    """Sanitised: as groups, tools and messages show it."""
    given: str
    """As the file has it."""
    argv: tuple[str, ...] = field(default=(), repr=False)
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    kind: Literal["stdio", "http", "sse"] = "stdio"
    url: str = field(default="", repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    def without_secrets(self, text: str) -> str:
        """``text`` with the values of headers and variables, and the query of the address, taken out."""
        for secret in self._secrets():
            text = text.replace(secret, "[hidden]")
        return text

    def _secrets(self) -> list[str]:
        address = urlsplit(self.url)
        values = [address.query, address.password or "", *self.headers.values()]
        values += [value.rpartition(" ")[2] for value in self.headers.values()]  # the token without its scheme
        values += [value for value in self.env.values() if not value.startswith(("/", "./", "~"))]
        # The longest first: one may be part of another.
        return sorted({value for value in values if len(value) >= _SHORTEST_SECRET}, key=len, reverse=True)


@dataclass(frozen=True, slots=True)
class Plans:
    """Everything usable in a file, and a sentence about each entry that is not."""

    servers: tuple[Plan, ...]
    broken: tuple[tuple[str, str], ...]
    """Name and reason."""


class _Entry(BaseModel):
    """One member of ``mcpServers``. Other programs read the same file: what only they know is ignored."""

    model_config = ConfigDict(strict=True, hide_input_in_errors=True)

    type: Literal["stdio", "http", "streamable-http", "sse"] | None = None
    command: str | None = None
    args: list[str] = []
    env: dict[str, str] = {}
    url: str | None = None
    headers: dict[str, str] = {}


def read_file(cwd: str) -> bytes:
    """The file's bytes. Blocks; a link, a pipe or a giant is refused."""
    try:
        descriptor = os.open(Path(cwd, SERVERS_FILE), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if Path(cwd, SERVERS_FILE).is_symlink():
            raise PlanError("it is a symlink, which is not followed") from None
        raise PlanError(f"it cannot be read: {error.strerror}") from None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise PlanError("it is not a regular file")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            data = file.read(MAX_FILE + 1)
    finally:
        os.close(descriptor)
    if len(data) > MAX_FILE:
        raise PlanError(f"it is larger than {MAX_FILE} bytes")
    return data


def parse(data: bytes, env: Mapping[str, str], wanted: Callable[[str, str], bool]) -> Plans:
    """The servers that are ``wanted`` by name (sanitised, as given), with ``${VAR}`` taken from ``env`` alone."""
    found = _entries(data)
    servers: list[Plan] = []
    broken: list[tuple[str, str]] = []
    names: set[str] = set()
    for given, raw in found.items():
        name = server_name(given, names)
        names.add(name)
        if not wanted(name, given):
            continue
        try:
            servers.append(_plan(name, given, raw, lambda text: _expanded(text, env)))
        except PlanError as error:
            broken.append((name, str(error)))
    return Plans(tuple(servers), tuple(broken))


def _entries(data: bytes) -> dict[str, object]:
    try:
        whole = json.loads(data)
    except json.JSONDecodeError as error:
        raise PlanError(f"it is not JSON: {error.msg} in line {error.lineno}") from None
    except (ValueError, RecursionError):  # not text, or nested without end
        raise PlanError("it is not JSON") from None
    found = whole.get("mcpServers") if isinstance(whole, dict) else None
    if not isinstance(found, dict):
        raise PlanError('it is not an object with a member "mcpServers"')
    if len(found) > MOST_SERVERS:
        raise PlanError(f"it names {len(found)} servers: at most {MOST_SERVERS} are allowed")
    return found


def _plan(name: str, given: str, raw: object, expand: Expand) -> Plan:
    try:
        entry = _Entry.model_validate(raw)
    except ValidationError as error:
        raise PlanError(f"its entry is wrong: {explain(error)}") from None
    kind = entry.type or ("stdio" if entry.url is None else "http")
    if kind == "stdio":
        if not entry.command:
            raise PlanError("its entry has no command")
        argv = tuple(expand(word) for word in (entry.command, *entry.args))
        return Plan(name, given, argv, {key: expand(value) for key, value in entry.env.items()})
    if entry.url is None:
        raise PlanError("its entry has no url")
    url = expand(entry.url)
    if urlsplit(url).scheme not in {"http", "https"}:
        raise PlanError("its url does not begin with http:// or https://")
    headers = {key: expand(value) for key, value in entry.headers.items()}
    return Plan(name, given, kind="sse" if kind == "sse" else "http", url=url, headers=headers)


def _expanded(text: str, env: Mapping[str, str]) -> str:
    def value(found: re.Match[str]) -> str:
        name, default = found.groups()
        if name in env:
            return env[name]
        if default is None:
            # Never from the host's own environment: whoever writes the file would choose which secrets it gets.
            raise PlanError(f"it needs ${{{name}}}, which is not in the env of this spawn")
        return str(default)

    return _VARIABLE.sub(value, text)
