"""Configuration from a TOML file and from `UNDERSTUDY_…` variables, the variables over the file."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

from understudy.protocol import ConfigError, RuntimeConfig

if TYPE_CHECKING:
    from collections.abc import Mapping

_PREFIX = "UNDERSTUDY_"
_OTHERS = {"UNDERSTUDY_DB", "UNDERSTUDY_SESSION"}  # what the command line means: no settings of a runtime


def load_config(path: str | Path | None = None, *, environ: Mapping[str, str] | None = None) -> RuntimeConfig:
    """The configuration in ``path`` (a TOML file, or no file) with the environment's settings over it.

    A variable is named after its key, ``UNDERSTUDY_MAX_SPAWN_DEPTH=4``; a list is written as JSON. Any mistake is
    a `ConfigError`: one sentence with the place, the key, the value and what is allowed.
    """
    from_file = read_toml(Path(path)) if path is not None else {}
    from_file.pop("cli", None)  # profiles of CLIs: `load_profiles` reads them
    if path is not None:
        RuntimeConfig.parse(from_file, source=str(path))  # so that an error names the file it is in
    from_environment = _read_environment(os.environ if environ is None else environ)
    if from_environment:
        RuntimeConfig.parse(from_environment, source="environment")
    return RuntimeConfig.parse({**_plain_names(from_file), **from_environment}, source=str(path or "environment"))


def _plain_names(values: Mapping[str, object]) -> dict[str, object]:
    """One spelling, so that a variable replaces a key that the file writes in camelCase."""
    plain = {field.alias: name for name, field in RuntimeConfig.model_fields.items()}
    return {plain.get(key, key): value for key, value in values.items()}


def read_toml(path: Path) -> dict[str, object]:
    """What a TOML file says; a `ConfigError` where it cannot be read."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text: byte {error.start} cannot be decoded") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: is not TOML: {error}") from None


def _read_environment(environ: Mapping[str, str]) -> dict[str, object]:
    return {
        name.removeprefix(_PREFIX).lower(): _value(text)
        for name, text in environ.items()
        if name.startswith(_PREFIX) and name not in _OTHERS
    }


def _value(text: str) -> object:
    """Lists and null as JSON; all else is text, which pydantic reads as the key's own type."""
    if text.startswith("[") or text == "null":
        try:
            return json.loads(text)
        except json.JSONDecodeError:
            return text
    return text
