"""How tokens are counted when the host does not say: by tiktoken where that needs no network, else by length."""

from __future__ import annotations

import hashlib
import importlib
import logging
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from understudy.protocol.tokens import estimate_tokens

if TYPE_CHECKING:
    from collections.abc import Sequence

    from understudy.protocol.tokens import TokenEstimator

logger = logging.getLogger("understudy")

# Vocabularies by name: where tiktoken gets each from, and the digest by which it knows a whole one.
_VOCABULARIES = {
    "o200k_base": "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
    "cl100k_base": "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
}
_FROM = "https://openaipublic.blob.core.windows.net/encodings/{name}.tiktoken"

# A stretch without a blank costs tiktoken the square of its length: it is given slices.
_SLICE = 2_000
_MOST_SLICES = 64


class Encoding(Protocol):
    """What is asked of a tiktoken encoding."""

    def encode_ordinary(self, text: str) -> list[int]:
        """The tokens of a text."""


class Counted:
    """Counts by an encoding. A long text is counted by samples of it: an estimate, at a bounded cost."""

    __slots__ = ("_encoding",)

    def __init__(self, encoding: Encoding) -> None:
        self._encoding = encoding

    def __call__(self, text: str) -> int:
        """About how many tokens it has."""
        count = self._encoding.encode_ordinary
        starts: Sequence[int] = range(0, len(text), _SLICE)
        if len(starts) <= _MOST_SLICES:
            return sum(len(count(text[start : start + _SLICE])) for start in starts)
        sampled = [starts[place * len(starts) // _MOST_SLICES] for place in range(_MOST_SLICES)]
        counted = sum(len(count(text[start : start + _SLICE])) for start in sampled)
        return -(-counted * len(text) // (_MOST_SLICES * _SLICE))


class Careful:
    """A host's own estimator, which may fail: no run goes without its result because of it."""

    __slots__ = ("_estimator", "_failed")

    def __init__(self, estimator: TokenEstimator) -> None:
        self._estimator = estimator
        self._failed = False

    def __call__(self, text: str) -> int:
        """What the host's estimator says, or what its length does."""
        try:
            return max(0, int(self._estimator(text)))
        except Exception:
            if not self._failed:
                self._failed = True
                logger.exception("the host's token estimator failed; such texts are counted by their length")
            return estimate_tokens(text)


def default_estimator() -> TokenEstimator:
    """By tiktoken, if that is installed and a vocabulary is on this machine; else four characters a token.

    tiktoken fetches a vocabulary it does not have, without a timeout. It is never asked to.
    """
    for name, digest in _VOCABULARIES.items():
        if not _is_cached(name, digest):
            continue
        try:
            encoding: Encoding = importlib.import_module("tiktoken").get_encoding(name)
        except Exception as error:  # noqa: BLE001 - not installed, or not in a state to count
            logger.debug("tokens are counted by length: %s", error)
            break
        return Careful(Counted(encoding))
    return estimate_tokens


def _is_cached(name: str, digest: str) -> bool:
    """Whether tiktoken would find its file: where it looks, and whole."""
    folder = os.environ.get("TIKTOKEN_CACHE_DIR", os.environ.get("DATA_GYM_CACHE_DIR"))
    if folder is None:
        folder = str(Path(tempfile.gettempdir(), "data-gym-cache"))
    if not folder:  # its way to say that nothing is kept
        return False
    key = hashlib.sha1(_FROM.format(name=name).encode(), usedforsecurity=False).hexdigest()
    try:
        return hashlib.sha256(Path(folder, key).read_bytes()).hexdigest() == digest
    except OSError:
        return False
