"""The page on the command line names every command, option and exit code, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from _program import commands

from understudy.gateway.cli.refusal import Exit

PAGE = (Path(__file__).parents[3] / "docs" / "cli.md").read_text()


def test_every_command_stands_there_with_its_arguments_and_options() -> None:
    """In its row of a table; what is said there of an option that is not there fails too."""
    rows = {
        words: set(re.findall(r"`(--[\w-]+)`", options))
        for words, options in re.findall(r"^\| `understudy ([^`]+)` \|.*\|(.*)\|$", PAGE, re.MULTILINE)
    }
    known = {}
    for name, command in commands().items():
        arguments = [param.metavar for param in command.params if param.param_type_name == "argument"]
        known[" ".join([name, *arguments])] = {
            option
            for param in command.params
            if param.param_type_name == "option"
            for option in param.opts
            if option.startswith("--")
        }
    assert rows == known


def test_every_reading_command_speaks_json() -> None:
    """So do those that act."""
    without = {
        name for name, command in commands().items() if "--json" not in {o for p in command.params for o in p.opts}
    }
    assert without == {"demo", "hook run", "mcp", "serve"}


def test_every_exit_code_is_explained() -> None:
    """And Ctrl-C's, which is the shell's own."""
    codes = re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)
    assert [int(code) for code in codes] == [*Exit, 130]
