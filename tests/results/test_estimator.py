"""Counting tokens: one estimator for everything, replaceable, and never a surprise on the network."""

from __future__ import annotations

import hashlib
import inspect
import socket
from typing import TYPE_CHECKING, Any

import pytest
import tiktoken
from _stage import MAIN, a_host
from tiktoken_ext import openai_public  # type: ignore[import-untyped]

from understudy.actors import estimator as module
from understudy.actors.estimator import Careful, Counted, default_estimator
from understudy.protocol import Spawn
from understudy.protocol.tokens import estimate_tokens

if TYPE_CHECKING:
    from pathlib import Path

    from understudy.actors.runners import AsyncFunctionContext
    from understudy.actors.testing import ManualClock
    from understudy.protocol import SpawnPacket


def bytes_alone() -> tiktoken.Encoding:
    """A real encoding without a vocabulary to fetch: a token a byte, and two for 'ab'."""
    ranks = {bytes([byte]): byte for byte in range(256)} | {b"ab": 256}
    return tiktoken.Encoding("bytes", pat_str=r"\S+|\s+", mergeable_ranks=ranks, special_tokens={})


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache, and a network that fails whoever touches it."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    return tmp_path


def test_without_a_vocabulary_on_this_machine_length_is_what_counts(no_network: Path) -> None:
    """Tiktoken is installed here, and would fetch one."""
    assert default_estimator() is estimate_tokens


def test_a_damaged_vocabulary_is_none(no_network: Path) -> None:
    """Tiktoken would throw it away and fetch another."""
    for name in module._VOCABULARIES:
        address = module._FROM.format(name=name)
        (no_network / hashlib.sha1(address.encode(), usedforsecurity=False).hexdigest()).write_bytes(b"half of it")
    assert default_estimator() is estimate_tokens


def test_what_is_cached_is_used(no_network: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found where tiktoken keeps it, known by its digest, then asked for by name."""
    name = "o200k_base"
    key = hashlib.sha1(module._FROM.format(name=name).encode(), usedforsecurity=False).hexdigest()
    (no_network / key).write_bytes(b"a vocabulary")
    monkeypatch.setitem(module._VOCABULARIES, name, hashlib.sha256(b"a vocabulary").hexdigest())
    monkeypatch.setitem(tiktoken.registry.ENCODINGS, name, bytes_alone())
    estimate = default_estimator()
    assert isinstance(estimate, Careful)
    assert estimate("abab c") == 4


def test_the_digests_are_those_tiktoken_knows() -> None:
    """Were they to differ, it would be asked for something it has not got."""
    text = inspect.getsource(openai_public)
    for name, digest in module._VOCABULARIES.items():
        assert module._FROM.format(name=name) in text
        assert digest in text


@pytest.mark.parametrize("text", ["", "ab" * 50, "x" * 3_000, "漢字 " * 900, "\ud800 ab"])
def test_a_short_text_is_counted(text: str) -> None:
    """Slice by slice: nearly what it counts as a whole."""
    whole = len(bytes_alone().encode_ordinary(text))
    assert whole <= Counted(bytes_alone())(text) <= whole + 2


def test_a_long_text_is_sampled() -> None:
    """Ten megabytes without a blank, at the cost of a page or two, and within a tenth."""
    seen: list[int] = []

    class Watching:
        def encode_ordinary(self, text: str) -> list[int]:
            seen.append(len(text))
            return [0] * (len(text) // 2)

    assert Counted(Watching())("ab" * 5_000_000) == pytest.approx(5_000_000, rel=0.1)
    assert (max(seen), sum(seen)) == (2_000, 128_000)


def test_the_hosts_estimator_decides_what_fits(manual_clock: ManualClock) -> None:
    """By words: two hundred are too many for a hundred, and the result says how many there were."""

    async def talk(packet: SpawnPacket, context: AsyncFunctionContext) -> str:
        return "word " * 200

    def words(text: str) -> int:
        return len(text.split())

    with a_host(manual_clock, talk, config={"max_result_tokens": 100}, estimator=words) as runtime:
        result = runtime.session(MAIN).spawn(Spawn(task="x")).result(timeout=30)
    assert (result.condensation.level, result.condensation.original_tokens) == (3, 200)
    assert words(result.output) <= 100


def test_an_estimator_that_fails_costs_nobody_a_result(manual_clock: ManualClock) -> None:
    """It is logged once, and length counts instead."""

    def broken(text: str) -> int:
        raise ZeroDivisionError

    with a_host(manual_clock, estimator=broken) as runtime:
        result = runtime.session(MAIN).spawn(Spawn(task="x")).result(timeout=30)
    assert (result.output, result.condensation.original_tokens) == ("done: x", 2)
