"""Small values that are made for every turn of every child."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def value(kind: type[T]) -> type[T]:
    """A frozen dataclass to the type checker; freezing at run time would double the cost of making one."""
    return dataclass(slots=True, unsafe_hash=True)(kind)
