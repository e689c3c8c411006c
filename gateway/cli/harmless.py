"""Text from elsewhere, made harmless for a terminal: what could steer it is shown, not obeyed."""

from __future__ import annotations

import unicodedata

# Control characters, invisible formatting (direction overrides among it), halves of characters, line separators.
_STEERING = {"Cc", "Cf", "Cs", "Zl", "Zp"}
_KEPT = "\n\t"


class _Shown(dict[int, str]):
    """Each character as it is shown: as itself, or as the escape that would write it."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        steers = unicodedata.category(character) in _STEERING and character not in _KEPT
        self[code] = shown = character.encode("unicode_escape").decode("ascii") if steers else character
        return shown


_SHOWN = _Shown()


def harmless(text: str) -> str:
    """``text`` with its lines, and without anything a terminal would obey."""
    return text if text.isprintable() else text.translate(_SHOWN)


def one_line(text: str) -> str:
    """``text`` on one line, whatever was in it."""
    return harmless(" ".join(text.split()))
