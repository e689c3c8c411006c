"""Secrets are taken out before anything is written: what is stored, indexed or exported never held them."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

REDACTED = "[redacted]"


class _Rule(NamedTuple):
    """A pattern, and the substrings (lower case) without which it cannot match.

    Substring tests are some hundred times cheaper than the patterns, and nearly every text stops there.
    """

    hints: tuple[str, ...]
    pattern: re.Pattern[str]
    replacement: str


# Every repetition below is over one character class and ends at something outside of it, or is bounded in
# number: no match goes back over more than a bounded stretch, so the time is linear in the text.
_NAMES = (
    r"password|passwd|pwd|passphrase|secret|token|api[_ -]?key|access[_-]?key|private[_-]?key"
    r"|authorization|credentials?"
)
_RULES = (
    _Rule(
        # Keys that say by their shape what they are.
        (
            *("sk-", "sk_", "rk-", "rk_", "pk-", "pk_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"),
            *("glpat-", "xox", "akia", "asia", "aiza", "npm_", "hf_", "pypi-", "eyj"),
        ),
        re.compile(
            r"(?<![A-Za-z0-9])(?:"
            r"[srp]k[-_][A-Za-z0-9_-]{16,}"
            r"|gh[opsur]_[A-Za-z0-9]{20,}"
            r"|github_pat_[A-Za-z0-9_]{20,}"
            r"|glpat-[A-Za-z0-9_-]{16,}"
            r"|xox[abeoprs]-[A-Za-z0-9-]{10,}"
            r"|(?:AKIA|ASIA)[A-Z0-9]{16}"
            r"|AIza[A-Za-z0-9_-]{30,}"
            r"|npm_[A-Za-z0-9]{30,}"
            r"|hf_[A-Za-z0-9]{20,}"
            r"|pypi-[A-Za-z0-9_-]{30,}"
            r"|eyJ[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]{8,}){1,2}"
            r")"
        ),
        REDACTED,
    ),
    _Rule(
        ("bearer", "basic "),
        re.compile(r"\b(bearer|basic)[ \t]{1,4}[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE),
        rf"\1 {REDACTED}",
    ),
    _Rule(
        # name = value, "name": "value", name: value
        (
            *("password", "passwd", "pwd", "passphrase", "secret", "token", "api_key", "apikey", "api-key"),
            *("api key", "access_key", "access-key", "accesskey", "private_key", "private-key", "privatekey"),
            *("authorization", "credential"),
        ),
        re.compile(
            rf"((?:{_NAMES})\\?[\"']?[ \t]{{0,4}}(?:=>|:=|=|:)[ \t]{{0,4}}\\?[\"']?)"
            r"(?!\[redacted\]|bearer |basic )[^\s\"'`,;<>(){}\[\]\\]{4,}",
            re.IGNORECASE,
        ),
        rf"\1{REDACTED}",
    ),
    _Rule(
        ("://",),
        re.compile(r"(://[^\s/:@\"']{0,128}:)[^\s/:@\"']{1,256}(?=@)"),
        rf"\1{REDACTED}",
    ),
)
_BLOCK_HINT = "private key"
_BLOCK = re.compile(r"-----BEGIN (?:[A-Z0-9]{1,12} ){0,3}PRIVATE KEY(?: BLOCK)?-----")
_BLOCK_END = re.compile(r"-----END (?:[A-Z0-9]{1,12} ){0,3}PRIVATE KEY(?: BLOCK)?-----")
# Most prose has no underscore, so most of the hints need not be looked for one by one.
_ALL_HINTS = [_BLOCK_HINT, *(hint for rule in _RULES for hint in rule.hints)]
_HINTS_WITH_UNDERSCORE = tuple(hint for hint in _ALL_HINTS if "_" in hint)
_HINTS = tuple(hint for hint in _ALL_HINTS if "_" not in hint)

_SECRET_NAME = re.compile(rf"(?:^|[_.-])(?:{_NAMES})$", re.IGNORECASE)
_SECRET_VARIABLE = re.compile(r"key|token|secret|passw|passphrase|credential|auth", re.IGNORECASE)

# Names in our own documents that only look like secrets, and identifiers that must stay what they are.
_STRUCTURE = ('_tokens":', '"tokens":', "first_token_timeout_ms")
_IDENTIFIERS = frozenset(
    {
        *("type", "run_id", "parent_run_id", "session_key", "parent_session_key", "root_session_key"),
        *("agent_id", "runner", "end_reason", "kind", "provenance"),
    }
)

# A shorter registered value would redact ordinary words.
_SHORTEST_VALUE = 4


class Redactor:
    """Takes secrets out of text: by pattern, and the very values the host registered.

    Example:
        >>> Redactor(["hunter2"]).text("I typed hunter2; password: tr0ub4dor")
        'I typed [redacted]; password: [redacted]'
    """

    __slots__ = ("_hints", "_values")

    def __init__(self, values: Iterable[str] = ()) -> None:
        kept = {value for value in values if len(value) >= _SHORTEST_VALUE}
        # The longest first, so that a value inside another leaves no rest of it behind.
        self._values = tuple(sorted(kept, key=len, reverse=True))
        # In JSON a value may stand escaped: the hints know both spellings.
        escaped = {json.dumps(value, ensure_ascii=False)[1:-1] for value in kept}
        self._hints = (*_HINTS, *sorted({value.lower() for value in kept | escaped}))

    def text(self, text: str) -> str:
        """``text`` without secrets, and storable: without NUL (SQLite's end of text) and lone surrogates."""
        if not text.isascii():
            text = text.encode("utf-8", "replace").decode("utf-8")
        if "\x00" in text:
            text = text.replace("\x00", "\ufffd")
        lowered = text.lower()
        return self._redacted(text, lowered) if self._suspect(lowered) else text

    def json(self, document: str) -> str:
        """The same for the strings inside a JSON document, which stays a JSON document."""
        lowered = document.lower()
        for name in _STRUCTURE:
            lowered = lowered.replace(name, "")
        if not self._suspect(lowered):
            return document
        return json.dumps(self._walk(json.loads(document), ""), ensure_ascii=False, separators=(",", ":"))

    def _suspect(self, lowered: str) -> bool:
        # Loops: any() with a generator would double the cost of the most frequent check there is.
        for hint in self._hints:
            if hint in lowered:
                return True
        if "_" in lowered:
            for hint in _HINTS_WITH_UNDERSCORE:
                if hint in lowered:
                    return True
        return False

    def _redacted(self, text: str, lowered: str) -> str:
        for value in self._values:
            text = text.replace(value, REDACTED)
        if _BLOCK_HINT in lowered:
            text = _without_blocks(text)
        for rule in _RULES:
            if any(hint in lowered for hint in rule.hints):
                text = rule.pattern.sub(rule.replacement, text)
        return text

    def _walk(self, node: object, name: str, *, variables: bool = False) -> object:
        if isinstance(node, dict):
            return {key: self._walk(item, key, variables=name == "env") for key, item in node.items()}
        if isinstance(node, list):
            return [self._walk(item, name) for item in node]
        if not isinstance(node, str) or not node or name in _IDENTIFIERS:
            return node
        secret = _SECRET_VARIABLE if variables else _SECRET_NAME
        return REDACTED if secret.search(name) else self.text(node)


def _without_blocks(text: str) -> str:
    """Private key blocks, each replaced whole; one without an end is taken to the end of the text."""
    parts, position = [], 0
    begin = _BLOCK.search(text)
    while begin is not None:
        parts += [text[position : begin.start()], REDACTED]
        end = _BLOCK_END.search(text, begin.end())
        position = len(text) if end is None else end.end()
        begin = _BLOCK.search(text, position)
    return "".join([*parts, text[position:]])
