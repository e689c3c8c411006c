"""What a system prompt marks as knowledge of its domain: the section of that name, item by item."""

from __future__ import annotations

import re

_HEADING = re.compile(r"(#{1,6})[ \t]+(.*?)[ \t]*#*[ \t]*$")
_FENCE = re.compile(r"[ ]{0,3}(`{3,}|~{3,})")
_BULLET = re.compile(r"[-*+][ \t]+(?=\S)")


def marked_knowledge(system: str | None) -> tuple[str, ...]:
    r"""The items under ``## Domain Knowledge``, up to the next heading of the same or a higher level.

    A list item is an item, and so is a paragraph.

    Example:
        >>> marked_knowledge("You help.\n\n## Domain Knowledge\n- Settings are layered.\n\n## Rules\nBe brief.")
        ('Settings are layered.',)
    """
    items: list[list[str]] = []
    level = 0  # of the section's own heading while inside of it
    fence = ""
    apart = True  # whether the next line begins an item, whatever it looks like
    for line in (system or "").splitlines():
        opened = _FENCE.match(line)
        if opened is not None and (not fence or opened[1].startswith(fence)):
            fence = "" if fence else opened[1]
        elif not fence and (heading := _HEADING.match(line)) is not None:
            if heading[2].casefold() == "domain knowledge":
                level = level or len(heading[1])
            elif level and len(heading[1]) <= level:
                level = 0
            apart = True
            continue
        if not level:
            continue
        bullet = None if fence else _BULLET.match(line)
        if not line.strip() and not fence:
            apart = True
        elif bullet is not None or (apart and not line.startswith((" ", "\t"))) or not items:
            items.append([line[bullet.end() :] if bullet is not None else line])
            apart = False
        else:
            items[-1].append(line)
            apart = False
    return tuple(text for item in items if (text := "\n".join(item).strip()))
