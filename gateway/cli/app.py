"""The program: its commands, and what every one of them does about errors and pipes."""

import os
import sys
from importlib.metadata import version
from json import JSONDecodeError
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from typer.core import TyperGroup

from understudy.gateway.cli import acting, following, listing, showing
from understudy.gateway.cli.doctor import doctor
from understudy.gateway.cli.harmless import one_line
from understudy.gateway.cli.hooking import hook
from understudy.gateway.cli.refusal import Exit, Refusal
from understudy.gateway.cli.screen import print_line
from understudy.gateway.cli.serving import serve
from understudy.gateway.cli.settings import config
from understudy.gateway.cli.speaking import mcp
from understudy.persistence import CorruptStoreError, ForeignStoreError, StoreError
from understudy.protocol import ConfigError
from understudy.protocol.run_facts import IllegalFactsError


class _Program(TyperGroup):
    """Whatever a command refuses is one sentence and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        # An odd locale must not be what a listing fails on.
        for stream in (sys.stdout, sys.stderr):
            getattr(stream, "reconfigure", lambda **_: None)(errors="backslashreplace")
        try:
            answer = super().invoke(ctx)
            sys.stdout.flush()  # here, where a closed pipe can still be dealt with
        except Refusal as refusal:
            raise _said(refusal, refusal.exit_code) from refusal
        except (ConfigError, CorruptStoreError, ForeignStoreError) as error:
            raise _said(error, Exit.BAD_INPUT) from error
        except (StoreError, IllegalFactsError) as error:
            raise _said(error, Exit.NOT_SO) from error
        except (ValidationError, JSONDecodeError) as error:
            words = f"a row of the database cannot be read ({str(error).splitlines()[0]}): restore a copy of it"
            raise _said(Refusal(words), Exit.NOT_SO) from error
        except BrokenPipeError:
            # Whoever read has read enough (`| head`), which is no failure; what is still buffered goes nowhere.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(Exit.OK) from None
        except OSError as error:
            words = f"{error.filename or 'the system'}: {error.strerror or error}"
            raise _said(Refusal(words), Exit.BAD_INPUT) from error
        return answer


def _said(error: Exception, code: Exit) -> typer.Exit:
    sys.stderr.write(f"understudy: {one_line(str(error))}\n")
    return typer.Exit(code)


app = typer.Typer(
    name="understudy",
    cls=_Program,
    no_args_is_help=True,
    add_completion=False,
    # Plain help and tracebacks: both are read in pipes and logs too, and locals may hold secrets.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _tell_version(asked: bool) -> None:
    if asked:
        print_line(f"understudy {version('understudy')}")
        raise typer.Exit


@app.callback()
def understudy(
    *,
    _: Annotated[
        bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="Tell the version and exit.")
    ] = False,
) -> None:
    """Look at a runtime's sub-agents, and act on them through its server."""


@app.command()
def demo() -> None:
    """Run the demo: a live tree, or plain text in a pipe."""
    from understudy.gateway.demo.play import play  # noqa: PLC0415 - the runtime is not needed for looking

    raise typer.Exit(play())


app.command("runs")(listing.runs)
app.command("show")(showing.show)
app.command("tree")(showing.tree)
app.command("search")(listing.search)
app.command("tail")(following.tail)
app.command("dead-letters")(listing.dead_letters)
app.command("replay")(acting.replay)
app.command("sweep")(acting.sweep)
app.command("kill")(acting.kill)
app.command("follow-up")(acting.follow_up)
app.command("doctor")(doctor)
app.command("serve")(serve)
app.command("mcp")(mcp)
app.add_typer(config, name="config")
app.add_typer(hook, name="hook")
