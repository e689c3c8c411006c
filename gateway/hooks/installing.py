"""Changing a harness's settings file: shown first, in one step, and so that it can be taken back to the byte."""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import json
import os
import stat
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from understudy.gateway.hooks.claude_settings import SettingsError, installed, with_entries, without_entries

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_BOM = "\ufeff"
_CONTEXT_LINES = 2


@dataclass(frozen=True, slots=True)
class Settings:
    """A settings file, as it was when it was looked at."""

    path: Path
    """Where it really stands: a link is followed, and stays one."""
    text: str | None
    """None where there is no file."""
    foldered: bool = True
    """Whether there is the folder it stands in."""


@dataclass(frozen=True, slots=True)
class Change:
    """What would be done to a settings file."""

    settings: Settings
    after: str | None
    """None: the file goes."""
    before: str | None
    """What was there before us, to be restored."""
    made_folder: bool
    """Whether its folder is there because of us."""

    @property
    def nothing(self) -> bool:
        """Whether it is as it should be already."""
        return self.after == self.settings.text

    def diff(self) -> str:
        """What changes, for a person."""
        before, after = ((text or "").splitlines() for text in (self.settings.text, self.after))
        name = str(self.settings.path)
        return "\n".join(difflib.unified_diff(before, after, name, name, n=_CONTEXT_LINES, lineterm=""))


@dataclass(frozen=True, slots=True)
class Origin:
    """What stood in a settings file before us, and what we wrote."""

    before: str | None
    after: str | None
    made_folder: bool


class Origins:
    """The way back to what was there before us; in a folder only its owner can read, as settings may hold secrets."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Origins:
        """In the user's folder for what programs remember."""
        state = environ.get("XDG_STATE_HOME") or Path(environ.get("HOME") or Path.home(), ".local", "state")
        return cls(Path(state, "understudy", "hooks"))

    def known(self, settings: Settings) -> Origin | None:
        """What the last change of ours was; None where nothing is known of it."""
        try:
            found: Any = json.loads(self._file(settings).read_text(encoding="utf-8"))
            return Origin(found["before"], found["after"], bool(found["made_folder"]))
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def keep(self, change: Change) -> None:
        """Remember the way back."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        origin = Origin(change.before, change.after, change.made_folder)
        _write(self._file(change.settings), json.dumps(asdict(origin)), mode=0o600)

    def forget(self, settings: Settings) -> None:
        """The way back was taken."""
        self._file(settings).unlink(missing_ok=True)

    def _file(self, settings: Settings) -> Path:
        name = hashlib.sha256(os.fsencode(settings.path)).hexdigest()[:32]
        return self._folder / f"{name}.json"


def look_at(file: Path, *, within: Path | None = None) -> Settings:
    """A settings file as it is; ``within`` is the folder that a link must not lead out of."""
    try:
        path = file.resolve()
        if within is not None and not path.is_relative_to(within.resolve()):
            raise SettingsError(f"{file} leads out of the project, to {path}: replace the link by a file")
        found = path.stat()
    except FileNotFoundError:
        return Settings(path, None, foldered=path.parent.is_dir())
    except RuntimeError:
        raise SettingsError(f"{file} is a link that leads nowhere: remove it") from None
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        raise SettingsError(f"{path} is no file of yours: nothing is written there")
    try:
        return Settings(path, path.read_bytes().decode("utf-8"))
    except UnicodeDecodeError:
        raise SettingsError(f"{path} is no UTF-8: correct it first") from None


def install(settings: Settings, wanted: dict[str, dict[str, Any]], origins: Origins) -> Change:
    """What it takes to have these entries, and none of an earlier installation."""
    before = _before(settings, origins)
    mark, bare = _split(before)
    with _named(settings):
        after = with_entries(bare if bare.strip() else "{}\n", wanted)
        there = _split(settings.text)[1]
        if there.strip() and installed(there) == installed(after):
            return Change(settings, settings.text, before, made_folder=False)  # just these, wherever they were moved to
    known = origins.known(settings)
    return Change(settings, mark + after, before, not settings.foldered if known is None else known.made_folder)


def uninstall(settings: Settings, origins: Origins) -> Change:
    """What it takes to have the file as if we had never been there."""
    before, known = _before(settings, origins), origins.known(settings)
    return Change(settings, before, before, known is not None and known.made_folder)


def carry_out(change: Change, origins: Origins, *, keep: bool) -> None:
    """Do it, unless somebody has changed the file since it was looked at; ``keep`` remembers the way back."""
    path = change.settings.path
    if look_at(path).text != change.settings.text:
        raise SettingsError(f"{path} was changed meanwhile: try again")
    if keep:
        origins.keep(change)  # first, so that there is a way back whatever happens
    if change.after is None:
        path.unlink()
        if change.made_folder:
            with contextlib.suppress(OSError):  # somebody uses it by now
                path.parent.rmdir()
    elif not change.nothing:
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(path, change.after, mode=None if change.settings.text is None else stat.S_IMODE(path.stat().st_mode))
    if not keep:
        origins.forget(change.settings)


def _before(settings: Settings, origins: Origins) -> str | None:
    """The file without us: to the byte where nobody else has changed it since."""
    text, known = settings.text, origins.known(settings)
    if text is None:
        return None
    if known is not None and known.after == text:
        return known.before
    mark, bare = _split(text)
    if not bare.strip():
        return text
    origin = None if known is None else known.before
    with _named(settings):
        left = without_entries(bare, _split(origin)[1].strip() or None)
    made_by_us = known is not None and origin is None
    return None if made_by_us and left.strip() == "{}" else mark + left


def _split(text: str | None) -> tuple[str, str]:
    """A byte order mark, which is no JSON and stays all the same, and the rest."""
    text = text or ""
    return (_BOM, text[1:]) if text.startswith(_BOM) else ("", text)


@contextlib.contextmanager
def _named(settings: Settings) -> Iterator[None]:
    """Say which file an error is about."""
    try:
        yield
    except SettingsError as error:
        raise SettingsError(f"{settings.path} {error}: correct it first, nothing was written") from None


def _write(path: Path, text: str, *, mode: int | None) -> None:
    """In one step: whoever reads it finds all of the one or all of the other."""
    draft = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb") as file:
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            file.write(text.encode("utf-8"))
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
