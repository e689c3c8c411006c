"""Putting untrusted text before a model: every line is marked, so nothing inside can end or forge the frame.

The mark is what holds. Besides, what the runtime itself says in brackets, headings and rules is defused inside of a
frame, however it is spelt, so that a reader who overlooks a mark is not taken in.
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache, lru_cache

MARK = "│ "
"""What each framed line begins with. Text that is framed has no line without it."""

_LONGEST_INLINE = 500

# Cc: control, Cf: invisible and bidirectional marks, Cs: lone surrogates, Co: private use, Cn: not assigned.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn"})
# What shows as nothing although it counts as a letter or a mark.
_BLANKS = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0") | {
    chr(code) for code in (*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))
}

# Letters of other scripts, and signs, that are drawn like the Latin ones they are read as.
_DRAWN_LIKE = {
    **dict(zip("авсԁеґӻһіјκӏмпорԛгѕтυνшхуʏ", "abcdefghijklmnopqrstuvwxyy", strict=True)),
    **dict(zip("αβϲԍεηιкτωχοργϳոսհցօքѵԝьƅ", "abcgehiktwxopyjnuhgoqvwbb", strict=True)),
    **dict(zip("ɑɡɩıʟɴʀꜱᴛᴜᴠᴡᴢᴏᴇᴄᴅᴀʙᴋᴍᴘ", "agiilnrstuvwzoecdabkmp", strict=True)),
    **dict(zip("01l3457|!$@€", "oiieastiisae", strict=True)),
}
# Rules are drawn with any of these.
_DASHES = r"[-_=*~‐‑‒–—―−─━═⸺⸻﹘﹣－＿￣·•]"
_RULE = re.compile(rf"\s*(?:{_DASHES}\s*){{3,}}$")
_SPECIAL_TOKEN = re.compile(r"[<＜‹〈⟨](?=\s*[|｜│¦])")
# In ASCII: a bracket, a heading, the beginning of a rule, or of the name of a role.
_SUSPECT = re.compile(r"[\[<#]|^\W{0,4}(?:[-_=*~]|[s5$]\W*y|d\W*[e3]|[a4@]\W*[s5$]|h\W*u|u\W*[s5$])", re.IGNORECASE)
_GAP = r"[^\w\[#]{0,3}_?"


@lru_cache(maxsize=4096)
def _fold(character: str) -> str:
    """What a character is read as: letters in Latin and lower case, i and l alike, any bracket as [ or ]."""
    plain = unicodedata.normalize("NFKD", character)
    folded = []
    for part in plain.casefold():
        if unicodedata.combining(part):
            continue
        like = _DRAWN_LIKE.get(part, part)
        if part in "<>‹›«»" or "BRACKET" in unicodedata.name(part, ""):
            like = "[" if part in "<‹«" or unicodedata.category(part) == "Ps" else "]"
        folded.append(like)
    return "".join(folded)


def _spelt(words: str) -> str:
    """A pattern for words as they look when folded, whatever stands between their letters."""
    folded = "".join(_fold(letter) for letter in words if letter.isalnum())
    return _GAP.join(re.escape(letter) for letter in folded)


_TAGS = ("Subagent Result", "working-context", "Objective Reinforcement")
_ROLE = "|".join(_spelt(name) for name in ("system", "developer", "assistant", "human", "user"))
# A role in brackets, closed, cut off or with a word after it; not an index such as rows[user].
_AFTER_A_ROLE = "|".join((r"[\]:]", "$", _spelt("message"), _spelt("prompt"), _spelt("remind")))
_BRACKETED_ROLE = rf"(?<!\w)\[[^\w]{{0,8}}(?:{_ROLE})(?=\W{{0,4}}(?:{_AFTER_A_ROLE}))"
_SPEAKING_ROLE = re.compile(rf"\W{{0,4}}(?:{_ROLE})\W{{0,4}}[:：꞉∶]")
_HEADING = re.compile(rf"\s*#[#\W]{{0,12}}{_spelt('Inherited from Parent Session')}")


@cache
def _tags(own: str) -> re.Pattern[str]:
    names = {_spelt(name) for name in (*_TAGS, own)} - {""}
    return re.compile(rf"\[[^\w]{{0,8}}_?(?:{'|'.join(sorted(names))})|{_BRACKETED_ROLE}")


def frame(text: str, *, tag: str = "") -> str:
    """``text`` as marked lines; ``tag`` is the host's own name for results, where it has one.

    Line breaks of every kind become real ones before the lines are marked, and characters that hide, reorder or
    erase text are dropped, so that what a person or a model sees is what is there.
    """
    if text.isprintable() and _plain(text):  # and so of one line: what most results are
        return MARK + text
    return "\n".join([MARK + _defused(_shown(line), tag) for line in text.splitlines() or [""]])


def in_a_line(text: str, most: int = _LONGEST_INLINE) -> str:
    """A label, a name or an error for use inside of a line of ours: no line break, no bracket, not too long."""
    if text.isprintable() and text.isascii() and "[" not in text and "]" not in text and len(text) <= most:
        return text
    short = text if len(text) <= most else f"{text[: most - 1]}…"
    shown = _shown(" ".join(short.split()))
    return " ".join("".join(map(_unbracketed, shown)).split())


def _unbracketed(character: str) -> str:
    if character in "(){}":
        return character
    return {"Ps": "(", "Pe": ")"}.get(unicodedata.category(character), character)


def _shown(line: str) -> str:
    if line.isascii() and line.isprintable():
        return line
    return "".join([c for c in line if c == "\t" or (unicodedata.category(c) not in _HIDDEN and c not in _BLANKS)])


def _plain(text: str) -> bool:
    """Whether nothing in a line can be what `_defused` looks for; the cheap question before the dear one."""
    return text.isascii() and _SUSPECT.search(text) is None


def _defused(line: str, tag: str) -> str:
    if _plain(line):
        return line
    if line.isascii():
        folded = line.translate(_ASCII)
        places = None
    else:
        parts = [_fold(character) for character in line]
        folded = "".join(parts)
        places = [place for place, part in enumerate(parts) for _ in part]
    taken: set[int] = set()
    for found in _tags(tag).finditer(folded):
        brackets = (place for place in range(found.start(), found.end()) if folded[place] == "[")
        taken.update(place if places is None else places[place] for place in brackets)
    taken.update(found.start() for found in _SPECIAL_TOKEN.finditer(line))
    if taken:
        line = "".join(["(" if place in taken else character for place, character in enumerate(line)])
    if _RULE.match(line) or _HEADING.match(folded) or _SPEAKING_ROLE.match(folded):
        return f"\\{line}"
    return line


_ASCII = {code: _fold(chr(code)) for code in range(128)}
