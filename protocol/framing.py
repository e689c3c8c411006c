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
_LONGEST_KNOWN = 200
"""Lines up to this length are remembered as they were marked: a thousand of them, so a megabyte at the most."""

# Cc: control, Cf: invisible and bidirectional marks, Cs: lone surrogates, Co: private use, Cn: not assigned.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn"})
# What shows as nothing although it counts as a letter or a mark.
_BLANKS = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0") | {
    chr(code) for code in (*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))
}

# Letters of other scripts, and signs, that are drawn like the Latin ones they are read as.
_DRAWN_LIKE = {
    **dict(zip("авсԁеґӻһіјκӏмпорԛгѕтυνшхуʏ", "abcdefghijkimnopqrstuvwxyy", strict=True)),
    **dict(zip("αβϲԍεηιкτωχοργϳոսհցօքѵԝьƅѡǀ", "abcgehiktwxopyjnuhgoqvwbbwi", strict=True)),
    **dict(zip("ɑɡɩıʟɴʀꜱᴛᴜᴠᴡᴢᴏᴇᴄᴅᴀʙᴋᴍᴘ", "agiiinrstuvwzoecdabkmp", strict=True)),
    **dict(zip("01l3457|!$@€", "oiieastiisae", strict=True)),
}
_BRACKETS = re.compile(r"[\[\]<>]")
# Rules are drawn with any of these.
_DASHES = r"[-_=*~‐‑‒–—―−─━═⸺⸻﹘﹣－＿￣·•]"
_RULE = re.compile(rf"\s*(?:{_DASHES}\s*){{3,}}$")
_SPEAKER = re.compile(r"(?:user|assistant|tool): ")
_SPECIAL_TOKEN = re.compile(r"[<＜‹〈⟨](?=\s*[|｜│¦])")
# In ASCII: a bracket, a heading, or the beginning of a rule.
_SUSPECT = re.compile(r"[\[<#]|^\s*[-_=*~]")
# Who puts more before a role's name has not begun a line with it.
_LONGEST_ROLE = 200
_LAST_OF_A_ROLE = "mMrRtT7nN"


@lru_cache(maxsize=4096)
def _fold(character: str) -> str:
    """What a character is read as: Latin, lower case, i and l alike, any bracket [ or ]; nothing if it only fills."""
    if character in _DRAWN_LIKE:  # as it is: some would be normalized to what they do not look like
        return _DRAWN_LIKE[character]
    folded = []
    for part in unicodedata.normalize("NFKD", character).casefold():
        like = _DRAWN_LIKE.get(part, part)
        if part in "<>‹›«»" or "BRACKET" in unicodedata.name(part, ""):
            like = "[" if part in "<‹«" or unicodedata.category(part) == "Ps" else "]"
        elif part in ":꞉∶":
            like = ":"
        if like.isalnum() or like in "[]#:":
            folded.append(like)
    return "".join(folded)


def _folded(text: str) -> str:
    return text.translate(_ASCII) if text.isascii() else "".join(map(_fold, text))


_ASCII = {code: _fold(chr(code)) for code in range(128)}
_ROLE = "|".join(map(_folded, ("system", "developer", "assistant", "human", "user")))
# A role in brackets, closed, cut off or with a word after it.
_ROLE_TAG = rf"(?P<role>\[(?:{_ROLE})(?=[\]:]|$|{_folded('message')}|{_folded('prompt')}|{_folded('remind')}))"
_LINE = re.compile(rf"[\[\]#]*(?:(?:{_ROLE})[\[\]]*:)|[\[\]]*#[\[\]#]*{_folded('Inherited from Parent Session')}")
_TAGS = (
    *("Subagent Result", "working-context", "Objective Reinforcement", "Conversation Summary", "Message from session"),
    *("active-subagents", "results-awaiting-delivery", "objective"),
)


@cache
def _tags(own: str) -> re.Pattern[str]:
    names = {_folded(name) for name in (*_TAGS, own)} - {""}
    return re.compile(rf"\[(?:{'|'.join(map(re.escape, sorted(names)))})|{_ROLE_TAG}")


def frame(text: str, *, tag: str = "", transcript: bool = False) -> str:
    """``text`` as marked lines; ``tag`` is the host's own name for results, where it has one.

    Line breaks of every kind become real ones before the lines are marked, and characters that hide, reorder or
    erase text are dropped, so that what a person or a model sees is what is there. In a ``transcript`` a line may
    begin with who said it, plainly written: all of it is quoted.
    """
    if text.isprintable() and _plain(text):  # and so of one line: what most results are
        return MARK + text
    return "\n".join(
        [
            (_known if len(line) <= _LONGEST_KNOWN else _marked)(line, tag, transcript=transcript)
            for line in text.splitlines() or [""]
        ]
    )


def _marked(line: str, tag: str, *, transcript: bool) -> str:
    """One line, marked as quoted; in a transcript its speaker stays in the open."""
    shown = _shown(line)
    who = _SPEAKER.match(shown) if transcript else None
    if who is None:
        return MARK + _defused(shown, tag)
    return MARK + who[0] + _defused(shown[who.end() :], tag)


# What a session's children inherit is framed anew after every turn, and nearly all of its lines are those of before.
_known = lru_cache(maxsize=1024)(_marked)


def in_a_line(text: str, most: int = _LONGEST_INLINE) -> str:
    """A label, a name or an error for use inside of a line of ours: no line break, no bracket, not too long."""
    if len(text) <= most and text.isascii() and text.isprintable() and not _BRACKETS.search(text):
        return text
    short = text if len(text) <= most else f"{text[: most - 1]}…"
    shown = _shown(" ".join(short.split()))
    return " ".join("".join(map(_unbracketed, shown)).split())


def _unbracketed(character: str) -> str:
    if character in "(){}":
        return character
    return {"[": "(", "]": ")"}.get(_fold(character), character)


def _shown(line: str) -> str:
    if line.isascii() and line.isprintable():
        return line
    return "".join([c for c in line if c == "\t" or (unicodedata.category(c) not in _HIDDEN and c not in _BLANKS)])


def _plain(text: str) -> bool:
    """Whether nothing in a line can be what `_defused` looks for; the cheap question before the dear one."""
    if not text.isascii() or _SUSPECT.search(text) is not None:
        return False
    # What speaks for a role stands before the first colon.
    colon = text.find(":", 0, _LONGEST_ROLE)
    if colon <= 0 or (text[colon - 1].isalnum() and text[colon - 1] not in _LAST_OF_A_ROLE):
        return True
    return _LINE.match(text[: colon + 1].translate(_ASCII)) is None


def _defused(line: str, tag: str) -> str:
    """A line in which no tag, heading, rule or role of ours can be read, however it is spelt."""
    if _plain(line):
        return line
    folded = _folded(line)
    taken = {found.start() for found in _SPECIAL_TOKEN.finditer(line)}
    if _tags(tag).search(folded):
        taken |= _tag_brackets(line, tag)
    if taken:
        line = "".join(["(" if place in taken else character for place, character in enumerate(line)])
    return f"\\{line}" if _RULE.match(line) or _LINE.match(folded) else line


def _tag_brackets(line: str, tag: str) -> set[int]:
    """Where in a line the brackets stand that begin a tag."""
    parts = [_fold(character) for character in line]
    places = [place for place, part in enumerate(parts) for _ in part]
    folded = "".join(parts)
    taken: set[int] = set()
    for found in _tags(tag).finditer(folded):
        first = places[found.start()]
        if found["role"] and first > 0 and line[first - 1].isalnum():
            continue  # an index, as in rows[user]
        place = found.start()
        while place >= 0 and folded[place] == "[" and places[place] not in taken:
            taken.add(places[place])
            place -= 1
    return taken
