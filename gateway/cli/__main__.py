"""Where the program begins; typer and rich are an extra, and their absence is a sentence."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command that was asked for, and exit with its code."""
    try:
        from understudy.gateway.cli.app import app  # noqa: PLC0415 - needs the extra
    except ModuleNotFoundError as error:
        if error.name not in {"typer", "rich"}:
            raise
        sys.stderr.write(f"understudy: the command line needs {error.name}: pip install 'understudy[cli]'\n")
        sys.exit(2)
    app()


if __name__ == "__main__":
    main()
