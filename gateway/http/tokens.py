"""Who may come in: tokens of which only hashes are kept, each for everything or for one agent's things."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_PREFIX = "ustd_"
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


@dataclass(frozen=True, slots=True)
class Grant:
    """What a token is good for: one agent's things, or with None everybody's."""

    token_hash: str
    agent_id: str | None = None


class TokenFileError(ValueError):
    """The token file cannot be used; the message says what to do."""


class Tokens:
    """The grants in a token file; one that was added or taken out counts from the next request on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read_at: tuple[int, int, int] | None = None
        self._grants: tuple[Grant, ...] = ()

    def grant(self, token: str) -> Grant | None:
        """What ``token`` is good for; None when it is not one of ours."""
        given = _hash(token)
        found = None
        for grant in self.grants():  # all of them, so that the time tells nothing
            if hmac.compare_digest(given, grant.token_hash):
                found = grant
        return found

    def grants(self) -> tuple[Grant, ...]:
        """Everything the file says now."""
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return ()
        seen = (found.st_mtime_ns, found.st_size, found.st_ino)
        if seen != self._read_at:
            self._grants = _read(self.path)
            self._read_at = seen
        return self._grants


def tokens_of(database: Path) -> Tokens:
    """The tokens that open the gateway of a database; their file stands beside it."""
    return Tokens(_beside(database, ".tokens"))


def owner_token(database: Path) -> Path:
    """The file with the token for everything, made on the first start, readable by its owner alone."""
    path = _beside(database, ".token")
    try:
        known = _private_text(path).strip()
    except FileNotFoundError:
        known = ""
    grant = tokens_of(database).grant(known)
    if grant is None or grant.agent_id is not None:
        path.unlink(missing_ok=True)
        _append(path, create_token(database))
    return path


def create_token(database: Path, *, agent_id: str | None = None) -> str:
    """A new token, for everything or for one agent's things. It is told once: the file keeps its hash."""
    if agent_id is not None and not agent_id.strip():
        raise ValueError(f"agent_id {agent_id!r} is not allowed: name an agent, or leave it out for a token for all")
    token = _PREFIX + secrets.token_urlsafe(32)
    path = tokens_of(database).path
    if path.exists():
        _private_text(path)  # refuses a file that others can write their own hashes into
    _append(path, json.dumps({"token_hash": _hash(token), "agent_id": agent_id}))
    return token


def _read(path: Path) -> tuple[Grant, ...]:
    grants = []
    for number, line in enumerate(_private_text(path).splitlines(), 1):
        if not line.strip():
            continue
        try:
            said = json.loads(line)
            grants.append(Grant(str(said["token_hash"]), said["agent_id"]))
        except (ValueError, TypeError, KeyError):
            raise TokenFileError(
                f'line {number} of {path} is no token: write {{"token_hash": …, "agent_id": … or null}}, or take it out'
            ) from None
    return tuple(grants)


def _private_text(path: Path) -> str:
    """What stands in a file, if nobody but its owner can read or write it."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), encoding="utf-8") as file:
        if os.fstat(file.fileno()).st_mode & _OTHERS:
            raise TokenFileError(f"{path} can be read by others: run `chmod 600 {path}`, or remove it for new tokens")
        return file.read()


def _append(path: Path, line: str) -> None:
    opened = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    with os.fdopen(opened, "a", encoding="utf-8") as file:
        file.write(f"{line}\n")


def _beside(database: Path, suffix: str) -> Path:
    return database.with_name(database.name + suffix)


def _hash(token: str) -> str:
    # 256 random bits need no salt and no slow hash: there is nothing to guess.
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
