"""The worker process of a `ProcessRunner`: ``python -P _worker.py DESCRIPTOR``, the order as JSON on standard input.

It imports nothing of the library before it knows where its host imported it from.
"""

from __future__ import annotations

import importlib
import json
import socket
import sys


def main() -> int:
    """Read the order and do it; 0 when the runner came to its end."""
    line = socket.socket(fileno=int(sys.argv[1]))
    line.set_inheritable(False)  # what the runner starts has no business on it
    order = json.loads(sys.stdin.buffer.read())
    sys.path[:] = order["path"]
    code: int = importlib.import_module("understudy.actors.runners._offstage").work(order, line)
    return code


if __name__ == "__main__":
    sys.exit(main())
