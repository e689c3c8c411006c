"""``config show`` and ``config check``: what a runtime would be told, and where that comes from."""

import os
from pathlib import Path
from typing import Annotated

import typer

from understudy.actors import load_config
from understudy.gateway.cli.options import AsJson, Config
from understudy.gateway.cli.screen import Column, print_json, print_line, print_table
from understudy.protocol import RuntimeConfig

config = typer.Typer(help="Show or check the configuration.", no_args_is_help=True)


@config.command("show")
def show(*, file: Config = None, as_json: AsJson = False) -> None:
    """Show every setting, its value and where that comes from."""
    values = load_config(file).model_dump(mode="json")
    of_file = load_config(file, environ={}).model_dump(mode="json")
    usual = RuntimeConfig().model_dump(mode="json")
    sources = {key: _source(key, given=of_file[key] != usual[key], file=file) for key in values}
    if as_json:
        print_json({key: {"value": values[key], "from": sources[key]} for key in values})
        return
    rows = [(key, _shown(value), sources[key]) for key, value in values.items()]
    print_table([Column("KEY"), Column("VALUE", "fold"), Column("FROM")], rows)


@config.command("check")
def check(
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help="A TOML file.")] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Check a configuration file, and the UNDERSTUDY_… variables that go over it."""
    load_config(file)
    if as_json:
        print_json({"ok": True, "file": None if file is None else str(file)})
    else:
        print_line(f"{file if file is not None else 'the environment'} is in order")


def _source(key: str, *, given: bool, file: Path | None) -> str:
    if f"UNDERSTUDY_{key.upper()}" in os.environ:
        return "environment"
    return str(file) if given and file is not None else "default"


def _shown(value: object) -> str:
    """A value as docs/configuration.md has it."""
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "()"
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
