"""What an agent may hand down: the tools it has itself, and nothing else."""

from __future__ import annotations

from understudy.protocol._value import value


@value
class Authority:
    """The tools of whoever spawned a run, by name: the most that the run, and everything below it, can have."""

    tools: tuple[str, ...] = ()
    ask_first: tuple[str, ...] = ()
    """Those of them for which a person is asked before each call; that is never lost on the way down."""


def within(group: str, wanted: str) -> bool:
    """Whether a tool group is the wanted one, or a part of it: ``files:read`` is within ``files``."""
    return group == wanted or group.startswith(f"{wanted}:")


def narrowed(asked: tuple[str, ...] | None, parents: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """The groups of a child: what was asked for and the parent has; None stands for all there are."""
    if asked is None or parents is None:
        return parents if asked is None else asked
    kept = [group for group in asked if any(within(group, had) for had in parents)]
    # Asked for more than the parent has: of that, the parent's part.
    kept += [had for had in parents if had not in kept and any(within(had, group) for group in asked)]
    return tuple(kept)
