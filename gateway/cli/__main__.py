"""Where the program begins; typer and rich are an extra, and their absence is a sentence."""

from __future__ import annotations

import sys

_HOOK = ["hook", "run"]


def main() -> None:
    """Run the command that was asked for, and exit with its code."""
    if sys.argv[1:3] == _HOOK and "--help" not in sys.argv:
        from understudy.gateway.hooks import run  # noqa: PLC0415 - a harness waits for it: nothing else is imported

        run.main(sys.argv[3:])
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
