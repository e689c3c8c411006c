"""Checkpoints: what a session is about is written down in time, and its constraints are never lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from _stage import MAIN, a_host, later

from understudy.actors import Runtime
from understudy.actors.checkpoints import DIGEST_TOKENS, EVERY_PROMPTS, made
from understudy.actors.runners import ModelRunner
from understudy.actors.testing import ManualClock, ScriptedModel
from understudy.persistence.operations import CHECKPOINTS_KEPT, SaveCheckpoint
from understudy.protocol import RuntimeConfig, Spawn
from understudy.protocol.tokens import estimate_tokens

if TYPE_CHECKING:
    from pathlib import Path


def a_thinker(clock: ManualClock, answers: int, store: Path | None = None, **options: Any) -> Runtime:
    model = ScriptedModel([f"answer {number}" for number in range(answers)])
    config = RuntimeConfig(max_steps=5)
    return Runtime(store, clock=clock, runners={"default": ModelRunner(model)}, config=config, **options)


def last(runtime: Runtime) -> tuple[str, int] | None:
    """The last checkpoint's trigger, and how many turns came after the ones it covers."""
    found = runtime.store.sessions.checkpoint(MAIN)
    if found is None:
        return None
    return found.trigger, len(runtime.store.transcripts.turns(MAIN, after=found.last_turn_id))


def test_every_ten_prompts(manual_clock: ManualClock) -> None:
    """Before the eleventh, of what was said until then; and again ten prompts later."""
    with a_thinker(manual_clock, 30) as runtime:
        session = runtime.session(MAIN)
        for number in range(EVERY_PROMPTS):
            session.prompt(f"prompt {number}")
            assert last(runtime) is None
        session.prompt("prompt 10")
        assert last(runtime) == ("periodic", 2)
        found = runtime.store.sessions.checkpoint(MAIN)
        assert found is not None
        assert "- prompt 9" in found.digest
        for number in range(11, 20):
            session.prompt(f"prompt {number}")
            assert last(runtime) == ("periodic", 2 + 2 * (number - 10))
        session.prompt("prompt 20")
        assert last(runtime) == ("periodic", 2)


def test_every_fifteen_minutes(manual_clock: ManualClock) -> None:
    """Looked at when a prompt comes, counted from the last checkpoint of any kind."""
    with a_thinker(manual_clock, 10) as runtime:
        session = runtime.session(MAIN)
        session.prompt("one")
        manual_clock.advance(15 * 60 - 1)
        session.prompt("two")
        assert last(runtime) is None
        manual_clock.advance(1)
        session.prompt("three")
        assert last(runtime) == ("periodic", 2)
        manual_clock.advance(10 * 60)
        session.checkpoint()
        manual_clock.advance(10 * 60)
        session.prompt("four")
        assert last(runtime) == ("explicit", 2)
        manual_clock.advance(5 * 60)
        session.prompt("five")
        assert last(runtime) == ("periodic", 2)


def test_before_a_compaction_and_at_the_end(manual_clock: ManualClock, tmp_path: Path) -> None:
    """The turns that are summed up are in it; closing the session writes the last one, stopping the host none."""
    with a_thinker(manual_clock, 10, tmp_path / "s.db") as runtime:
        session = runtime.session(MAIN)
        session.prompt("Where is the loader?")
        session.compact()
        assert last(runtime) == ("pre_compaction", 0)
        session.prompt("And the parser?")
    with a_thinker(later(), 1, tmp_path / "s.db") as runtime:
        assert last(runtime) == ("pre_compaction", 2)
        runtime.session(MAIN).close()
        assert last(runtime) == ("session_end", 0)
        found = runtime.store.sessions.checkpoint(MAIN)
        assert found is not None
        assert "- And the parser?" in found.digest
        runtime.session(MAIN).close()
        assert runtime.store.sessions.checkpoint(MAIN) == found


def test_constraints_and_entities_stay_until_they_are_replaced(manual_clock: ManualClock) -> None:
    """An automatic checkpoint never loses one; an empty list clears them."""
    with a_thinker(manual_clock, 40) as runtime:
        session = runtime.session(MAIN)
        said = session.checkpoint(digest="The loader", entities=["loader.py"], constraints=["never touch main"])
        assert (said.digest, said.trigger) == ("The loader", "explicit")
        for number in range(2 * EVERY_PROMPTS + 1):
            session.prompt(f"prompt {number}")
        found = runtime.store.sessions.checkpoint(MAIN)
        assert found is not None
        assert found.trigger == "periodic"
        assert (found.entities, found.constraints) == (("loader.py",), ("never touch main",))
        assert found.digest.startswith("The loader")
        changed = session.checkpoint(entities=[])
        assert (changed.entities, changed.constraints) == ((), ("never touch main",))
        session.compact()
        session.close()
        found = runtime.store.sessions.checkpoint(MAIN)
        assert found is not None
        assert found.constraints == ("never touch main",)


def test_no_automatic_one_comes_between_constraints_that_are_on_their_way(manual_clock: ManualClock) -> None:
    """They are taken over where they are written: one that was read too early takes nothing away."""
    with a_thinker(manual_clock, 3) as runtime:
        session = runtime.session(MAIN)
        session.prompt("one")
        backstage = session._actor.backstage

        async def both() -> None:
            early = made(backstage, session.key, "periodic")
            assert early is not None
            first = backstage.store.transaction(
                SaveCheckpoint(session.key, backstage.now(), "d", constraints=("be kind",))
            )
            second = backstage.store.transaction(early)
            await first
            await second

        session._do(both())
        found = runtime.store.sessions.checkpoint(MAIN)
        assert found is not None
        assert (found.trigger, found.constraints) == ("periodic", ("be kind",))


def test_only_the_newest_are_kept_and_old_ones_can_be_asked_for(manual_clock: ManualClock) -> None:
    """Twenty a session; ``until`` a turn gives what was known then."""
    with a_thinker(manual_clock, 40) as runtime:
        session = runtime.session(MAIN)
        saved = []
        for number in range(25):
            session.prompt(f"prompt {number}")
            saved.append(session.checkpoint(digest=f"digest {number}"))
        checkpoint = runtime.store.sessions.checkpoint
        for number, made in enumerate(saved):
            found = checkpoint(MAIN, until=made.last_turn_id)
            assert found == (made if number >= 25 - CHECKPOINTS_KEPT else None)
        assert checkpoint(MAIN, until=saved[-1].last_turn_id - 1) == saved[-2]


def test_a_digest_is_bounded_and_holds_no_secret(manual_clock: ManualClock, tmp_path: Path) -> None:
    """Whatever was said; what is registered or looks like a secret is taken out, in the objective too."""
    with a_thinker(manual_clock, 3, tmp_path / "s.db", secrets=["correct-horse-7"]) as runtime:
        session = runtime.session(MAIN, objective="use correct-horse-7")
        session.prompt("correct-horse-7 " * 100_000)
        session.checkpoint(entities=["correct-horse-7"], constraints=["password: hunter22"])
        session.compact()
        found = runtime.store.sessions.checkpoint(MAIN)
        assert found is not None
        assert estimate_tokens(found.digest) <= DIGEST_TOKENS
        files = [file for file in tmp_path.iterdir() if file.is_file()]
        assert files
        for secret in (b"correct-horse-7", b"hunter22"):
            assert [file.name for file in files if secret in file.read_bytes()] == []
        record = runtime.store.sessions.get(MAIN)
        assert record is not None
        assert record.objective == "use [redacted]"


def test_no_model_is_asked_for_one(manual_clock: ManualClock) -> None:
    """A session whose model has nothing to say gets its checkpoints all the same, and one without a model too."""
    with a_host(manual_clock) as runtime:
        session = runtime.session(MAIN)
        assert session.checkpoint().digest == ""
        session.spawn(Spawn(task="x", label="the child")).result(timeout=30)
        assert "the child" in session.checkpoint().digest


@pytest.mark.parametrize("working", ["a running child", "a finished child"])
def test_the_next_context_names_who_works(manual_clock: ManualClock, working: str) -> None:
    """From the host's own thread, while it works; afterwards it is gone."""
    with a_host(manual_clock) as runtime:
        session = runtime.session(MAIN)
        name = "hang" if working == "a running child" else "answer"
        handle = session.spawn(Spawn(task="x", label="look\u00a0[objective]", runner=name))
        manual_clock.advance(12)
        expected = f"[active-subagents]\n- {handle.run_id} (look [objective]): running, for 12 s, 0 steps"
        assert session.next_context() == (expected if name == "hang" else "")
