"""Configuration: every key documented, every mistake one clear sentence."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic.alias_generators import to_camel

from understudy.actors import load_config
from understudy.protocol import ConfigError, RuntimeConfig

DOC = Path(__file__).parents[2] / "docs" / "configuration.md"


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"max_spawn_dept": 3}, "unknown key 'max_spawn_dept' (did you mean 'max_spawn_depth'?)"),
        ({"zzz": 3}, "unknown key 'zzz'"),
        ({"max_spawn_depth": 40}, "max_spawn_depth = 40 is not allowed: use a whole number from 1 to 10"),
        ({"maxSpawnDepth": 0}, "max_spawn_depth = 0 is not allowed: use a whole number from 1 to 10"),
        ({"queue_timeout_ms": 0}, "queue_timeout_ms = 0 is not allowed: use a whole number above 0"),
        ({"idle_timeout_ms": -1}, "idle_timeout_ms = -1 is not allowed: use a whole number above 0, or leave it out"),
        ({"max_steps": "many"}, "max_steps = 'many' is not allowed: use a whole number of 1 or more"),
        ({"narrative_casting": "maybe"}, "narrative_casting = 'maybe' is not allowed: use true or false"),
        ({"restart_policy": "loop"}, "restart_policy = 'loop' is not allowed: use 'fail' or 'resume'"),
        ({"allow_agents": 5}, "allow_agents = 5 is not allowed: use a list of names, or leave it out"),
        ({"run_cost_budget_usd": 0}, "run_cost_budget_usd = 0 is not allowed: use a number above 0, or leave it out"),
        ({"result_tag_prefix": "a\nb"}, "result_tag_prefix = 'a\\nb' is not allowed: use one line of text"),
        ({"max_steps": 1, "maxSteps": 2}, "'max_steps' is given twice, also as 'maxSteps': keep one"),
    ],
)
def test_a_mistake_is_one_sentence_with_key_value_and_what_is_allowed(values: dict[str, Any], sentence: str) -> None:
    """Also when the class is built by hand."""
    with pytest.raises(ConfigError) as caught:
        RuntimeConfig.parse(values, source="agents.toml")
    assert str(caught.value) == f"agents.toml: {sentence}"
    with pytest.raises(ConfigError) as caught:
        RuntimeConfig(**values)
    assert str(caught.value) == sentence


def test_further_mistakes_are_notes() -> None:
    """The first is the sentence, none is lost."""
    with pytest.raises(ConfigError) as caught:
        RuntimeConfig.parse({"tail_chars": -1, "max_steps": 0}, source="x")
    assert caught.value.__notes__ == ["x: max_steps = 0 is not allowed: use a whole number of 1 or more"]


def test_a_file_and_the_environment_are_read_the_environment_first(tmp_path: Path) -> None:
    """Whatever spelling the file uses."""
    file = tmp_path / "agents.toml"
    file.write_text('maxSteps = 7\nmax_spawn_depth = 4\nallow_agents = ["a"]\n')
    environ = {"UNDERSTUDY_MAX_STEPS": "9", "UNDERSTUDY_INHERIT_CONTEXT": "false", "PATH": "/bin"}
    config = load_config(file, environ=environ)
    assert (config.max_steps, config.max_spawn_depth, config.allow_agents, config.inherit_context) == (
        9,
        4,
        ("a",),
        False,
    )
    listed = load_config(environ={"UNDERSTUDY_ALLOW_AGENTS": '["x", "y"]', "UNDERSTUDY_MAX_TOTAL_CHILDREN": "null"})
    assert (listed.allow_agents, listed.max_total_children) == (("x", "y"), None)
    assert load_config(environ={}) == RuntimeConfig()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda _: None, "cannot be read: No such file or directory"),
        (lambda file: file.mkdir(), "cannot be read: Is a directory"),
        (lambda file: file.write_bytes(b"max_steps = \xff"), "is not UTF-8 text: byte 12 cannot be decoded"),
        (lambda file: file.write_text("max_steps = = 3"), "is not TOML: Invalid value (at line 1, column 13)"),
        (lambda file: file.write_text("max_stepz = 3"), "unknown key 'max_stepz' (did you mean 'max_steps'?)"),
        (lambda file: file.write_text("[limits]\nmax_steps = 3"), "unknown key 'limits'"),
    ],
)
def test_an_unreadable_file_is_one_sentence_with_its_name(make: Any, words: str, tmp_path: Path) -> None:
    """Missing, a folder, not text, not TOML, or with a wrong key."""
    file = tmp_path / "agents.toml"
    make(file)
    with pytest.raises(ConfigError) as caught:
        load_config(file, environ={})
    assert str(caught.value) == f"{file}: {words}"


def test_a_mistake_in_the_environment_names_the_environment_and_no_unknown_value() -> None:
    """A variable we do not know may hold a secret."""
    with pytest.raises(ConfigError, match=r"^environment: max_steps = '0' is not allowed"):
        load_config(environ={"UNDERSTUDY_MAX_STEPS": "0"})
    with pytest.raises(ConfigError, match=r"^environment: unknown key 'passwort'$"):
        load_config(environ={"UNDERSTUDY_PASSWORT": "hunter2"})


def test_every_key_is_in_the_docs_with_its_default_and_nothing_else_is() -> None:
    """docs/configuration.md is the table; it cannot drift."""
    documented = dict(re.findall(r"^\| `(\w+)` \| `([^`]*)` \|", DOC.read_text(), re.MULTILINE))
    defaults = {name: field.default for name, field in RuntimeConfig.model_fields.items()}
    assert documented == {name: _written(default) for name, default in defaults.items()}


def _written(default: object) -> str:
    if default is None:
        return "none"
    return str(default).lower() if isinstance(default, bool) else str(default)


def test_both_spellings_of_every_key_are_known() -> None:
    """The camelCase of the source documents is an alias of each."""
    for name, field in RuntimeConfig.model_fields.items():
        assert RuntimeConfig.parse({to_camel(name): field.default}, source="x") == RuntimeConfig()


def test_variables_that_are_no_settings_are_nobodys_mistake() -> None:
    """They say which database and whose session the command line means."""
    assert (
        load_config(environ={"UNDERSTUDY_DB": "agents.db", "UNDERSTUDY_SESSION": "agent:atlas:main"}) == RuntimeConfig()
    )
