"""Putting untrusted text before a model: every line is marked, so nothing inside can end or forge the frame."""

from __future__ import annotations

import unicodedata

MARK = "│ "
"""What each framed line begins with. Text that is framed has no line without it."""


def frame(text: str) -> str:
    """``text`` as marked lines.

    Line breaks of every kind become real ones before the lines are marked, and characters that hide, reorder or
    erase text are dropped, so that what a person or a model sees is what is there.
    """
    if text.isprintable():  # and so of one line: what most results are
        return MARK + text
    return "\n".join([MARK + _shown(line) for line in text.splitlines()])


def _shown(line: str) -> str:
    if line.isprintable():
        return line
    # Cc: control, Cf: invisible and bidirectional marks, Cs: lone surrogates, Co: private use.
    return "".join(c for c in line if c == "\t" or unicodedata.category(c) not in {"Cc", "Cf", "Cs", "Co"})
