"""Secrets are taken out before anything is written: what is stored, indexed or exported never held them."""

from __future__ import annotations

import json
import re
from collections.abc import ValuesView
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import BaseModel

from understudy.persistence._storable import NOT_STORED, document, storable
from understudy.protocol import EndReason, RunId, SessionKey, Usage
from understudy.protocol.authority import Authority
from understudy.protocol.result import Condensation

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


# Every repetition below ends at something outside of its character class and is followed by nothing that could
# fail, or is bounded in number, or begins only where a stretch of its own class does: no stretch of text is read
# more than a bounded number of times, so the time is linear in the text.
_NAMES = (
    r"password|passwd|pwd|passphrase|passcode|(?<=_)pass|secret|token"
    r"|(?:api|access|account|private|secret|signing|encryption)[_ -]?key|secret_key_base"
    r"|authorization|credentials?"
)
_NAME_HINTS = (
    *("password", "passwd", "pwd", "passphrase", "passcode", "_pass", "secret", "token"),
    *(
        f"{kind}{sign}key"
        for kind in ("api", "access", "account", "private", "signing", "encryption")
        for sign in "_ -"
    ),
    *(f"{kind}key" for kind in ("api", "access", "account", "private", "signing", "encryption")),
    *("authorization", "credential"),
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
            r")"
            # Not after - and _ either: within one stretch of these characters there is then a single beginning.
            r"|(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]{8,}){1,2}"
        ),
        REDACTED,
    ),
    _Rule(
        ("bearer", "basic "),
        re.compile(r"\b(bearer|basic)[ \t]{1,4}[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE),
        rf"\1 {REDACTED}",
    ),
    _Rule(
        # A scheme and what follows it; those above keep their scheme.
        ("authorization",),
        re.compile(
            r"(authorization\\?[\"']?[ \t]{0,32}[:=][ \t]{0,32}\\?[\"']?)"
            r"(?:token|api-?key|key|digest|negotiate|ntlm|hawk|oauth|dpop|signature|aws4-hmac-sha256)[ \t]{1,4}"
            r"[^\s\"'\\][^\r\n\"'\\]*",
            re.IGNORECASE,
        ),
        rf"\1{REDACTED}",
    ),
    _Rule(
        # name = value, "name": "value", name: value; what is quoted goes up to the quote, blanks included. A quote
        # that is escaped ends what began with an escaped one, and is part of what did not.
        _NAME_HINTS,
        re.compile(
            rf"((?:{_NAMES})\\?[\"']?[ \t]{{0,32}}(?:=>|:=|=|:)[ \t]{{0,32}}(?:[rbfu]{{1,2}}(?=[\"']))?)(?:"
            r"(\\\")(?:[^\"\\\n]|\\(?!\"))++"
            r"|(\\')(?:[^'\\\n]|\\(?!'))++"
            r"|(\"(?:\"\")?)(?:[^\"\\\n]|\\[^\n])++"
            r"|('(?:'')?)(?:[^'\\\n]|\\[^\n])++"
            r"|(`)[^`\n]++"
            r"|(?!\[redacted\]|bearer |basic |(?:null|none|true|false)\b)[^\s\"'`,;<>(){}\[\]\\]{4,})",
            re.IGNORECASE,
        ),
        rf"\1\2\3\4\5\6{REDACTED}",
    ),
    _Rule(
        # --name value: in quotes, or with something in it that words do not have.
        tuple(f"-{name}" for name in _NAME_HINTS),
        re.compile(
            rf"(--(?:[a-z0-9]{{1,16}}-){{0,3}}(?:{_NAMES})[ \t]{{1,4}})(?:"
            r"(\")[^\"\n]++|(')[^'\n]++|(?![-\[])(?=[a-z.,-]{0,64}[0-9_+/=$!#%&*@])[^\s\"'`<>(){}\[\]\\]{4,})",
            re.IGNORECASE,
        ),
        rf"\1\2\3{REDACTED}",
    ),
    _Rule(
        tuple(f"{name}>" for name in (*_NAME_HINTS, "credentials")),
        re.compile(rf"((?:{_NAMES})>)[^<>\n]{{1,512}}(?=</)", re.IGNORECASE),
        rf"\1{REDACTED}",
    ),
    _Rule(
        # A password may hold a colon or an at; a number before a question mark is a port.
        ("://",),
        re.compile(r"(://[^\s/:@\"']{0,128}:)(?![0-9]{1,5}[?#])[^\s/\"'<>]{1,256}(?=@)"),
        rf"\1{REDACTED}",
    ),
)
_BLOCK_HINT = "private key"
_BLOCK = re.compile(r"-----BEGIN (?:[A-Z0-9]{1,12} ){0,3}PRIVATE KEY(?: BLOCK)?-----")
_BLOCK_END = re.compile(r"-----END (?:[A-Z0-9]{1,12} ){0,3}PRIVATE KEY(?: BLOCK)?-----")
_HINTS = (_BLOCK_HINT, *(hint for rule in _RULES for hint in rule.hints))
# What many hints have in common is looked for first, and nearly every text stops there; the rest of the hints only
# where a text has their underscore or hyphen at all.
_COMMON_PARTS = (
    *("key", "token", "pass", "secret", "pwd", "auth", "credential", "://", "bearer", "basic "),
    *("xox", "akia", "asia", "aiza", "eyj"),
)
_RARE_HINTS = {
    sign: tuple(hint for hint in _HINTS if sign in hint and not any(part in hint for part in _COMMON_PARTS))
    for sign in "_-"
}

# As the end of a name, so that accessToken and DB_PASSWORD are among them.
_SECRET_NAME = re.compile(rf"(?:{_NAMES})$", re.IGNORECASE)
# Variables are named more loosely; PWD and OLDPWD are folders.
_SECRET_VARIABLE = re.compile(r"key|token|secret|passw|passphrase|credential|auth|_pass|^pass|_pwd", re.IGNORECASE)
_VARIABLES = re.compile('"env": ?{"')

# Names in our own documents that only look like secrets, and what must stay as it is for them to be read again.
_STRUCTURE = ('_tokens":', '"tokens":', "first_token_timeout_ms")
_OUR_NAMES = frozenset(
    {
        *("type", "run_id", "parent_run_id", "session_key", "parent_session_key", "root_session_key"),
        *("agent_id", "runner", "end_reason", "kind", "failure.kind", "recent_files.provenance"),
        *("cleanup", "restart", "authority.tools", "authority.ask_first"),
    }
)
# What is validated as one line when it is read again, and so must not grow beyond the longest.
_OUR_LINES = frozenset(
    {
        *("label", "artifact_refs", "tool_groups", "expected_outputs", "workspace_dir", "cwd", "model", "spec_id"),
        *("graph.graph_id", "graph.node_id", "graph_shared_dir"),
    }
)
_LONGEST_LINE = 4096

# What holds no text, or an identifier that must stay what it is: nearly all of a message.
_HARMLESS = frozenset({int, float, bool, RunId, SessionKey, EndReason, Usage, Condensation, Authority})

# A shorter registered value would redact ordinary words.
_SHORTEST_VALUE = 4


class Redactor:
    """Takes secrets out of text: by pattern, and the very values the host registered.

    Example:
        >>> Redactor(["hunter2"]).text("I typed hunter2; password: tr0ub4dor")
        'I typed [redacted]; password: [redacted]'
    """

    __slots__ = ("_values",)

    def __init__(self, values: Iterable[str] = ()) -> None:
        # A value read from a file has a line break that it has nowhere else.
        kept = {value for given in values if len(value := given.strip()) >= _SHORTEST_VALUE}
        # In JSON a value may stand escaped, in either spelling.
        kept |= {json.dumps(value, ensure_ascii=ascii_only)[1:-1] for value in kept for ascii_only in (True, False)}
        # The longest first, so that a value inside another leaves no rest of it behind.
        self._values = tuple(sorted(kept, key=len, reverse=True))

    def text(self, text: str) -> str:
        """``text`` without secrets, and storable: without NUL (SQLite's end of text) and lone surrogates."""
        text = storable(text)
        if "\x00" in text:
            text = text.replace("\x00", "\ufffd")
        for value in self._values:
            text = text.replace(value, REDACTED)
        lowered = text.lower()
        if "tokens:" in lowered:
            # As in "Tokens: 4500 | … tokens |", which every result's note says: no rule takes the plural for a name.
            lowered = lowered.replace("tokens:", ":").replace("tokens |", "|")
        return _by_pattern(text, lowered) if _suspect(lowered) else text

    def json(self, document: str) -> str:
        """The same for the names and values inside a JSON document, which stays a JSON document."""
        document = storable(document)
        lowered = document.lower()
        for name in _STRUCTURE:
            lowered = lowered.replace(name, "")
        if not (_suspect(lowered) or _VARIABLES.search(document) or self._registered(document)):
            return document
        return self._walked(document, frozenset())

    def document(self, model: BaseModel) -> tuple[str, bool]:
        """A packet, a result or a failure as a JSON document without secrets; whether it had none to begin with.

        What it is identified by stays as it is.
        """
        written = document(model)
        texts: list[str] = []
        # Its field names are ours and no secrets, so that only what they hold is looked at.
        fields = model.__dict__
        if fields.get(NOT_STORED) is not None:
            fields = {**fields, NOT_STORED: None}
        if _gather(fields.values(), texts):
            said = "\n".join(texts)
            # A NUL would end the text for whoever takes it out of the document in SQL.
            if not (_suspect(said.lower()) or self._registered(said) or "\x00" in said):
                return written, True
        return self._walked(written, _OUR_NAMES), False

    def _walked(self, document: str, kept: frozenset[str]) -> str:
        root = [json.loads(document)]
        self._walk(root, kept)
        return json.dumps(root[0], ensure_ascii=False, separators=(",", ":"))

    def _registered(self, text: str) -> bool:
        return bool(self._values) and any(value in text for value in self._values)

    def _walk(self, root: list[Any], kept: frozenset[str]) -> None:
        """Redact in place. Not by recursion: the nesting is whatever a model said."""
        todo: list[tuple[Any, str, bool]] = [(root, "", False)]
        while todo:
            node, path, secret = todo.pop()
            if isinstance(node, list):
                for place, item in enumerate(node):
                    node[place] = self._item(item, path, secret, kept, todo)
                continue
            names = _SECRET_VARIABLE if path.rpartition(".")[2] == "env" else _SECRET_NAME
            for name, item in list(node.items()):
                below = f"{path}.{name}" if path else name
                clean = self._item(item, below, secret or names.search(name) is not None, kept, todo)
                said = name if kept else self.text(name)
                if said != name:
                    del node[name]
                node[said] = clean

    def _item(self, item: Any, path: str, secret: bool, kept: frozenset[str], todo: list[tuple[Any, str, bool]]) -> Any:
        if isinstance(item, (dict, list)):
            todo.append((item, path, secret))
            return item
        if item is None or item == "" or isinstance(item, bool) or path in kept:
            return item
        if secret:
            return REDACTED
        if not isinstance(item, str):
            return item
        said = self.text(item)
        return said[:_LONGEST_LINE] if kept and path in _OUR_LINES else said


def _suspect(lowered: str) -> bool:
    # Loops: any() with a generator would double the cost of the most frequent check there is.
    for part in _COMMON_PARTS:
        if part in lowered:
            return any(hint in lowered for hint in _HINTS)
    for sign, hints in _RARE_HINTS.items():
        if sign in lowered:
            for hint in hints:
                if hint in lowered:
                    return True
    return False


def _gather(values: Iterable[object], texts: list[str]) -> bool:
    """Collect the strings in ``values``; False where they hold names that are not ours, as variables have them."""
    for value in values:
        kind = type(value)
        if kind is str:
            texts.append(value)  # type: ignore[arg-type]  # mypy does not follow `kind`
        elif value and kind not in _HARMLESS:
            inside = value.__dict__.values() if isinstance(value, BaseModel) else value
            if not isinstance(inside, tuple | ValuesView) or not _gather(inside, texts):
                return False
    return True


def _by_pattern(text: str, lowered: str) -> str:
    if _BLOCK_HINT in lowered:
        text = _without_blocks(text)
    for rule in _RULES:
        if any(hint in lowered for hint in rule.hints):
            text = rule.pattern.sub(rule.replacement, text)
    return text


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
