"""The arguments and options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

DEFAULT_DB = Path("agents.db")

Db = Annotated[
    Path | None,
    typer.Option(
        "--db",
        metavar="PATH",
        envvar="UNDERSTUDY_DB",
        show_default="agents.db",
        help="The database of the runtime.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, max=10_000, metavar="N", help="At most so many.")]
Cursor = Annotated[
    str | None, typer.Option("--cursor", metavar="CURSOR", help="Go on behind an earlier answer: the cursor it gave.")
]
Run = Annotated[str, typer.Argument(metavar="RUN", help="A run's id: `understudy runs` lists them.")]
OfRun = Annotated[str | None, typer.Option("--run", metavar="RUN", help="Only of this run.")]
OfSession = Annotated[str | None, typer.Option("--session", metavar="KEY", help="Only of this session.")]
Config = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="A TOML file; UNDERSTUDY_… variables go over it.")
]
