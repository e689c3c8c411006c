"""Profiles from the ``[cli.…]`` tables of a TOML file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from understudy.actors.config_file import read_toml
from understudy.actors.runners.cli.generic import FieldPaths, PlainText
from understudy.actors.runners.cli.profile import CliProfile
from understudy.actors.runners.cli.profiles import PROFILES
from understudy.protocol import ConfigError
from understudy.protocol._explain import nearest

if TYPE_CHECKING:
    from collections.abc import Callable

    from understudy.actors.runners.cli.stream import Stream

Seconds = Annotated[float, Field(gt=0)]


class _Settings(BaseModel):
    """A profile as a person writes it; ``stream`` is "text", the name of a CLI that is known, or field paths."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    command: str
    fresh: tuple[str, ...]
    stream: Literal["text", "claude", "codex", "gemini", "opencode", "copilot"] | dict[str, str]
    resume: tuple[str, ...] | None = None
    model: tuple[str, ...] = ()
    prompt: Literal["stdin", "argv"] = "stdin"
    install: str = ""
    needs: tuple[str, ...] = ()
    credentials: tuple[str, ...] = ()
    env: dict[str, str] = Field(default_factory=dict)
    unknown_session: str | None = None
    grace_seconds: Seconds = 3.0
    quiet_seconds: Seconds = 300.0
    quiet_resumed_seconds: Seconds = 180.0


def load_profiles(path: str | Path) -> dict[str, CliProfile]:
    """The profiles in a TOML file, by name; a mistake is a `ConfigError` of one sentence that names its place.

    They may stand in the file that `load_config` reads, as tables: ``[cli.mine]``.
    """
    tables = read_toml(Path(path)).get("cli", {})
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        raise ConfigError(f"{path}: cli is not a table of tables: write [cli.NAME] above each profile")
    return {name: parse_profile(name, table, source=f"{path}: cli.{name}") for name, table in tables.items()}


def parse_profile(name: str, table: dict[str, Any], *, source: str) -> CliProfile:
    """One profile; an error names ``source``."""
    try:
        settings = _Settings.model_validate(table)
        given = {field: getattr(settings, field) for field in settings.model_fields_set}
        return CliProfile(**{**given, "name": name, "stream": _stream(settings.stream)})
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        key = str(first["loc"][0])
        if first["type"] == "extra_forbidden":
            what = f"unknown key {key!r}{nearest(key, _Settings.model_fields)}"
        elif first["type"] == "missing":
            what = f"{key} is missing"
        else:
            what = f"{key} is not allowed: {first['msg'][0].lower()}{first['msg'][1:]}"
        raise ConfigError(f"{source}: {what}") from None
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None


def _stream(named: str | dict[str, str]) -> Callable[..., Stream]:
    if isinstance(named, str):
        return PlainText if named == "text" else PROFILES[named].stream
    known = FieldPaths.__dataclass_fields__
    for key in named:
        if key not in known:
            raise ConfigError(f"stream has an unknown field {key!r}{nearest(key, known)}")
    return FieldPaths(**named).stream()
