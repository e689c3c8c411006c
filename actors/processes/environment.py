"""What a child process sees of the host's environment: next to nothing."""

from __future__ import annotations

import os
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

PASSED_ON = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_*", "TZ", "TMPDIR", "TERM")
"""The only variables of the host that a child sees: keys and tokens live in the others."""

_NONE: Mapping[str, str] = MappingProxyType({})


def child_environment(extra: Mapping[str, str] = _NONE, *, allow: Iterable[str] = PASSED_ON) -> dict[str, str]:
    """The host's variables whose names match ``allow``, and then ``extra``; nothing else of the host's.

    Example:
        >>> child_environment({"PROJECT": "demo"}, allow=())
        {'PROJECT': 'demo'}
    """
    patterns = tuple(allow)
    passed = {
        name: value for name, value in os.environ.items() if any(fnmatchcase(name, pattern) for pattern in patterns)
    }
    return {**passed, **extra}
